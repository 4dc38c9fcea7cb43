import { cpSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { beforeAll, expect, test } from "vitest";
import { emulatedBlas, withoutKernels } from "./emulated.ts";
import { collectErrors } from "./processes.ts";

interface Problem {
  readonly what: string;
  readonly env: Readonly<Record<string, string>>;
  readonly code?: string;
  readonly entry?: string;
  /** Pattern of the message: error class, where, expected, received, remedy. */
  readonly expected: RegExp;
}

const dist = fileURLToPath(new URL("../dist", import.meta.url));
beforeAll(() => cpSync(dist, join(withoutKernels, "dist"), { recursive: true }));

const problems: readonly Problem[] = [
  {
    what: "no driver",
    env: { MOSAIC_CUDA_LIBRARY: "/nonexistent/libcuda.so.1" },
    expected:
      /^DeviceError: no CUDA driver: cannot load \/nonexistent\/libcuda\.so\.1 \(.*No such file.*\)\. Install NVIDIA's driver/,
  },
  {
    what: "a library that lacks a function of the driver",
    env: { MOSAIC_CUDA_LIBRARY: "libdl.so.2" },
    expected:
      /^DeviceError: libdl\.so\.2 has no cuInit: this driver is older than CUDA 12\.0\. Update NVIDIA's driver to 525/,
  },
  {
    what: "no GPU",
    env: { MOSAIC_EMULATED_DEVICES: "0" },
    expected: /^DeviceError: the CUDA driver finds no GPU .*Check nvidia-smi and CUDA_VISIBLE_DEVICES/,
  },
  {
    what: "the index of a GPU that does not exist",
    env: { MOSAIC_EMULATED_DEVICES: "2", LOCAL_RANK: "5" },
    expected:
      /^DeviceError: cuda\(\{ index \}\): expected the index of a visible GPU, from 0 to 1, received 5; check CUDA_VISIBLE_DEVICES, .*index: 0/,
  },
  {
    what: "a negative index",
    env: {},
    code: "cuda({ index: -1 })",
    expected: /^OptionError: cuda: index: expected an integer ≥ 0, received -1/,
  },
  {
    what: "a memory limit that is not a number",
    env: {},
    code: "cuda({ memoryLimit: NaN })",
    expected: /^OptionError: cuda: memoryLimit: expected an integer ≥ 0, received NaN/,
  },
  {
    what: "a driver that is too old",
    env: { MOSAIC_EMULATED_DRIVER: "11080" },
    expected:
      /^DeviceError: the CUDA driver is too old: expected CUDA 12\.0 or newer, received CUDA 11\.8\. Update NVIDIA's driver/,
  },
  {
    what: "a driver that cannot start",
    env: { MOSAIC_EMULATED_INIT: "803" },
    expected:
      /^DeviceError: the CUDA driver cannot be initialized \(system has unsupported display driver.*803\)\. Check nvidia-smi/,
  },
  {
    what: "a GPU that is too old",
    env: { MOSAIC_EMULATED_CAPABILITY: "75" },
    expected:
      /^DeviceError: cuda:0: expected .*capability 8\.0 .* or newer, received Emulated GPU .* with 7\.5; select a different GPU/,
  },
  {
    what: "an addon built without nvcc",
    env: { MOSAIC_EMULATED_KERNELS: "0" },
    entry: join(withoutKernels, "dist/index.js"),
    expected:
      /^DeviceError: cuda\(\): expected CUDA kernels in the addon .*, received none because .*; install the CUDA Toolkit.*build:native/,
  },
  ...[200, 209, 222].map((code) => ({
    what: `kernels that the driver cannot load, with error code ${code}`,
    env: { MOSAIC_EMULATED_MODULE: String(code), MOSAIC_EMULATED_DRIVER: "12040" },
    expected:
      /^DeviceError: cuda\(\): expected kernels that the driver for CUDA 12\.4 can load on Emulated GPU.*; update the NVIDIA driver/,
  })),
  {
    what: "a cuBLASLt that is specified but missing",
    env: { MOSAIC_CUBLASLT_LIBRARY: "/nonexistent/libcublasLt.so" },
    code: multiplyCode(),
    expected:
      /^DeviceError: MOSAIC_CUBLASLT_LIBRARY: expected cuBLASLt 12\.0 or newer, received \/none.*; set it to libcublasLt\.so\.12/,
  },
  {
    what: "a library that is not cuBLASLt",
    env: { MOSAIC_CUBLASLT_LIBRARY: "libdl.so.2" },
    code: multiplyCode(),
    expected:
      /^DeviceError: MOSAIC_CUBLASLT_LIBRARY: .* received libdl\.so\.2 \(missing symbol cublasLtCreate\); set it/,
  },
];

/** Returns the code of a product of two 4 × 4 matrices. */
function multiplyCode(): string {
  return `const device = cuda(), x = device.empty([4, 4], "float32");
    device.kernels.matmul(device.empty([4, 4], "float32"), x, x, false);`;
}

test.concurrent.each(problems)(
  "throws an error that describes $what",
  async ({ expected, code = "cuda()", ...program }) => {
    const [reported] = await collectErrors(program, "", [code]);
    expect(reported).toMatch(expected);
  },
);

const mebibyte = 2 ** 20;

test.concurrent.each<[string, Readonly<Record<string, string>>, string, RegExp]>([
  [
    "the GPU's memory",
    { MOSAIC_EMULATED_MEMORY: String(8 * mebibyte) },
    "",
    /cuda:0: empty \[1572864\] float32: expected 6\.0 MiB of free memory, received 4\.0 MiB in use and 4\.0 MiB reserved; release the tensors of each step with scope/,
  ],
  [
    "its limit",
    {},
    `{ memoryLimit: ${8 * mebibyte} }`,
    /expected 6\.0 MiB of free memory, received 4\.0 MiB in use and .* the limit is 8\.0 MiB; release the tensors of each step with scope/,
  ],
])("a device that has used up %s works again once memory is freed", async (_, env, options, expected) => {
  const [firstError, secondError, ...laterErrors] = await collectErrors(
    { env },
    `const device = cuda(${options}), first = device.empty([${mebibyte}], "float32");`,
    [
      `device.empty([${1.5 * mebibyte}], "float32")`,
      `device.empty([${1.5 * mebibyte}], "float32")`,
      `first[Symbol.dispose]()`,
      `const x = device.empty([${1.5 * mebibyte}], "float32");
     device.kernels.fill(x, 7);
     const values = await x.read();
     if (values.at(-1) !== 7) throw new Error("it holds " + values.at(-1))`,
    ],
  );
  expect(firstError).toMatch(/^OutOfMemoryError: /);
  expect(firstError).toMatch(expected);
  expect(secondError).toMatch(expected);
  expect(laterErrors).toEqual(["none", "none"]);
});

test.concurrent("a device that runs out of memory reclaims the memory that another holds unused", async () => {
  const [reported] = await collectErrors({ env: { MOSAIC_EMULATED_MEMORY: String(8 * mebibyte) } }, "", [
    `const one = cuda(), other = cuda();
     one.empty([${1.5 * mebibyte}], "float32")[Symbol.dispose]();
     if (one.memory().reserved < ${6 * mebibyte}) throw new Error("nothing is kept");
     other.empty([${1.5 * mebibyte}], "float32")`,
  ]);
  expect(reported).toBe("none");
});

test.concurrent("a read without memory for its conversion is rejected, and a smaller read succeeds", async () => {
  const [first, second] = await collectErrors(
    { env: { MOSAIC_EMULATED_MEMORY: String(3 * mebibyte) } },
    `const device = cuda(), x = device.empty([${mebibyte}], "bfloat16");
     device.kernels.fill(x, 3);`,
    ["await x.read()", "const part = x.slice(0, 0, 8); await part.read()"],
  );
  expect(first).toMatch(
    /^OutOfMemoryError: read: expected 4194304 bytes of GPU memory for a conversion.*; dispose tensors/,
  );
  expect(second).toBe("none");
});

test.concurrent("a kernel that fails is named by the errors of all later calls", async () => {
  const reportedErrors = await collectErrors(
    { env: { MOSAIC_EMULATED_FAILING_LAUNCH: "3" } },
    `const device = cuda(), x = device.empty([4], "float32");
     device.kernels.fill(x, 1);
     await x.read();
     device.kernels.unary("exp", x, x);
     device.kernels.scalar("add", x, x, 2);`,
    [
      "await x.read()",
      "await x.read()",
      "await device.stream.synchronize()",
      "device.kernels.fill(x, 1)",
      `device.write(x, [1, 2, 3, 4])`,
      `device.empty([4], "float32")`,
      "device.stream.record()",
      "device.memory(); await device.stopTrace(); x[Symbol.dispose](); device[Symbol.dispose]()",
    ],
  );
  const failurePattern =
    /^DeviceError: cuda:0 \(Emulated GPU .*\): one of unary, scalar failed: an illegal memory access was encountered \(CUDA_ERROR_ILLEGAL_ADDRESS\); the CUDA context is unusable: restart the process, with CUDA_LAUNCH_BLOCKING=1/;
  for (const errorText of reportedErrors.slice(0, -1)) expect(errorText).toMatch(failurePattern);
  expect(reportedErrors.at(-1)).toBe("none");
});

test.concurrent("a kernel failure is reported by the first call after it, whichever call that is", async () => {
  for (const call of [`device.empty([4], "float32")`, "device.stream.record()", "await device.stream.synchronize()"]) {
    const [reported] = await collectErrors(
      { env: { MOSAIC_EMULATED_FAILING_LAUNCH: "1" } },
      `const device = cuda(), other = cuda(), x = device.empty([4], "float32");
       device.kernels.fill(x, 1);
       await other.stream.synchronize().catch(() => {});
       await x.read().catch(() => {});`,
      [call],
    );
    expect(reported).toMatch(/^DeviceError: cuda:0 .*: fill failed: an illegal memory access/);
  }
});

test.concurrent("a launch that the driver rejects is reported with the kernel's name", async () => {
  const env = { MOSAIC_EMULATED_REFUSED_LAUNCH: "2" };
  const reportedErrors = await collectErrors({ env }, `const device = cuda(), x = device.empty([4], "float32");`, [
    "device.kernels.fill(x, 1)",
    `device.kernels.unary("exp", x, x)`,
    "await x.read()",
  ]);
  const refusalPattern =
    /^DeviceError: cuda:0 \(.*\): unary: too many resources requested for launch \(CUDA_ERROR_LAUNCH_OUT_OF/;
  expect(reportedErrors[0]).toBe("none");
  for (const errorText of reportedErrors.slice(1)) expect(errorText).toMatch(refusalPattern);
});

test.concurrent("an index out of range is reported with the kernel's name and the remedy", async () => {
  const [reported] = await collectErrors({}, `const device = cuda(), table = device.empty([3, 2], "float32");`, [
    `const index = device.empty([1], "float32"), out = device.empty([1, 2], "float32");
     device.kernels.fill(table, 1);
     device.kernels.fill(index, 3);
     device.kernels.gatherRows(out, table, index);
     await out.read()`,
  ]);
  expect(reported).toBe(
    "DeviceError: gatherRows: expected integers from 0 to 2, received 3; in an Embedding, the indices are token ids and the " +
      "table has 3 rows: enlarge the table, or correct the token ids",
  );
});

test.concurrent("rows of 2^31 elements are rejected", async () => {
  const [reported] = await collectErrors({}, `const device = cuda(), x = device.empty([1, 1], "float32");`, [
    `const rows = x.expand([1, 2 ** 31]), out = device.empty([1], "float32");
     device.kernels.fill(x, 1);
     device.kernels.rowDot(out, rows, rows);
     await out.read()`,
  ]);
  expect(reported).toBe("DeviceError: rowDot: expected rows of fewer than 2^31 - 1024 elements, received 2147483648");
});

test.concurrent("the built-in kernel computes products for which cuBLASLt has no algorithm", async () => {
  const env = { MOSAIC_CUBLASLT_LIBRARY: emulatedBlas, MOSAIC_EMULATED_NO_ALGORITHM: "1" };
  const [reported] = await collectErrors({ env }, "", [
    `const device = cuda();
     device.startTrace();
     ${multiplyCode().replace("const device = cuda(), x", "const x")}
     throw new Error((await device.stopTrace()).map(({ name }) => name).join())`,
  ]);
  expect(reported).toBe("Error: matmul");
});

test.concurrent("a kernel that never ends blocks neither timers, nor dispose, nor the exit of the process", async () => {
  const [reported] = await collectErrors(
    { env: { MOSAIC_EMULATED_ENDLESS_LAUNCH: "1" } },
    `const device = cuda(), x = device.empty([4], "float32");
     device.kernels.fill(x, 1);`,
    [
      `let settled = false;
       x.read().finally(() => { settled = true; });
       device.startTrace();
       await new Promise((resolve) => setTimeout(resolve, 20));
       device[Symbol.dispose]();
       if (settled) throw new Error("the read ended")`,
    ],
  );
  expect(reported).toBe("none");
});
