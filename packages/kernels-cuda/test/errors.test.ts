import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { emulatedDriver } from "./emulated.ts";

// Each in a process of its own, for a process loads its driver once.
interface Trouble {
  readonly what: string;
  /** On top of the emulated driver's. */
  readonly env: Readonly<Record<string, string>>;
  readonly code: string;
  readonly name: string;
  readonly message: RegExp;
}

const open = "cuda()";
const troubles: readonly Trouble[] = [
  {
    what: "no driver",
    env: { MOSAIC_CUDA_LIBRARY: "/nonexistent/libcuda.so.1" },
    code: open,
    name: "DeviceError",
    message: /no CUDA driver: cannot load \/nonexistent\/libcuda\.so\.1.*Install NVIDIA's driver/s,
  },
  {
    what: "a library that is no driver",
    env: { MOSAIC_CUDA_LIBRARY: "libdl.so.2" },
    code: open,
    name: "DeviceError",
    message: /libdl\.so\.2 has no cu\w+: this driver is older/,
  },
  {
    what: "no GPU",
    env: { MOSAIC_EMULATED_DEVICES: "0" },
    code: open,
    name: "DeviceError",
    message: /finds no GPU.*CUDA_VISIBLE_DEVICES/s,
  },
  {
    what: "no such GPU",
    env: { MOSAIC_EMULATED_DEVICES: "2" },
    code: "cuda({ index: 5 })",
    name: "DeviceError",
    message: /cuda:5: GPUs are numbered from 0, and 2 can be seen/,
  },
  {
    what: "too old a driver",
    env: { MOSAIC_EMULATED_DRIVER: "11000" },
    code: open,
    name: "DeviceError",
    message: /too old: it is for CUDA 11\.0, needed is 11\.2/,
  },
  {
    what: "a driver that cannot start",
    env: { MOSAIC_EMULATED_INIT: "803" },
    code: open,
    name: "DeviceError",
    message: /cannot start \(system has unsupported display driver/,
  },
  {
    what: "too old a GPU",
    env: { MOSAIC_EMULATED_CAPABILITY: "75" },
    code: open,
    name: "DeviceError",
    message: /compute capability 7\.5, needed is 8\.0/,
  },
  {
    what: "the GPU's memory used up",
    env: { MOSAIC_EMULATED_MEMORY: "1000000" },
    code: `cuda().empty([1000, 1000], "float32")`,
    name: "OutOfMemoryError",
    message: /cuda:0.*dispose tensors/s,
  },
  {
    what: "a kernel that fails",
    env: { MOSAIC_EMULATED_FAILING_LAUNCH: "2" },
    code: `const device = cuda(), x = device.empty([4], "float32");
      device.kernels.fill(x, 1);
      device.kernels.fill(x, 2);
      await x.read()`,
    name: "DeviceError",
    message: /illegal memory access/,
  },
];

test.each(troubles)("says what to do about $what", async ({ env, code, name, message }) => {
  const error = await errorOf(code, env);
  expect(error.message).toMatch(message);
  expect(error.name).toBe(name);
});

/** What `code` throws in a process with that environment; a hang is killed. */
async function errorOf(code: string, env: Trouble["env"]): Promise<{ name: string; message: string }> {
  const entry = fileURLToPath(new URL("../dist/index.js", import.meta.url));
  const script = `const { cuda } = await import(${JSON.stringify(entry)});
    let thrown = { name: "nothing", message: "" };
    try { ${code}; } catch ({ name, message }) { thrown = { name, message }; }
    process.stdout.write(JSON.stringify(thrown), () => process.exit());`;
  const all = { ...process.env, MOSAIC_CUDA_LIBRARY: emulatedDriver, LOCAL_RANK: "0", ...env };
  const node = ["--input-type=module", "--eval", script];
  const { stdout } = await promisify(execFile)(process.execPath, node, { env: all, timeout: 60_000 });
  return JSON.parse(stdout) as { name: string; message: string };
}
