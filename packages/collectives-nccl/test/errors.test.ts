import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, onTestFinished, test } from "vitest";
import { emulatedLibraries } from "./emulated.ts";

// Each case runs in a separate process, because a process loads NCCL only once. The emulated libraries fail as
// configured.
interface FailureCase {
  readonly what: string;
  /** Environment variables in addition to those of the emulated libraries. */
  readonly env: Readonly<Record<string, string>>;
  readonly code: string;
  readonly name: string;
  readonly message: RegExp;
}

const openWorldCode = "await world(2, { device: () => cuda(), timeout: 1, nccl: { connectTimeout: 1 } })";
// Rank 1 may fail first, but its error depends on rank 0.
const useWorldCode = `const contexts = ${openWorldCode};
  const xs = contexts.map((ctx) => full(ctx, [4], 1));
  const reduce = (ctx) => ctx.world.allReduce(xs[ctx.rank]).wait();
  for (let i = 0; i < 3; i++) {
    reduce(contexts[0]);
    try { reduce(contexts[1]); } catch {}
  }
  await xs[0].read()`;

const failureCases: readonly FailureCase[] = [
  {
    what: "a missing NCCL",
    env: { MOSAIC_NCCL_LIBRARY: "/nonexistent/libnccl.so.2" },
    code: openWorldCode,
    name: "DeviceError",
    message: /expected NCCL, received none \(\/nonexistent\/libnccl\.so\.2: .*\); install NCCL 2\.18 or newer: .*pip/,
  },
  {
    what: "a library that is not NCCL",
    env: { MOSAIC_NCCL_LIBRARY: "libdl.so.2" },
    code: openWorldCode,
    name: "DeviceError",
    message: /received libdl\.so\.2 without the symbol ncclGetVersion; install NCCL/,
  },
  {
    what: "an NCCL that is too old",
    env: { MOSAIC_EMULATED_NCCL_VERSION: "21605" },
    code: "ncclSystem()",
    name: "DeviceError",
    message: /received .*libnccl_emulated\.so version 2\.16\.5, which is too old; install NCCL 2\.18 or newer/,
  },
  {
    what: "an NCCL that never connects the ranks",
    env: { MOSAIC_EMULATED_NCCL_HANG: "init" },
    code: openWorldCode,
    name: "CollectiveTimeoutError",
    message:
      /^connect: rank [01]: nccl timed out after 1 s while connecting the ranks; set NCCL_DEBUG=INFO for details; between hosts, select a shared network with nccl\(\{ network \}\)$/,
  },
  {
    what: "a network interface that does not exist",
    env: { NCCL_SOCKET_IFNAME: "none" },
    code: openWorldCode,
    name: "DeviceError",
    message:
      /NCCL: invalid usage \(ncclInvalidUsage\).*; set NCCL_SOCKET_IFNAME or nccl\(\{ network \}\) to an interface of this host/,
  },
  {
    what: "an asynchronous error",
    env: { MOSAIC_EMULATED_NCCL_ERROR: "5" },
    code: useWorldCode,
    name: "PeerLostError",
    message:
      /^rank [01]: allReduce #2 \(world\): NCCL: remote process exited or there was a network error \(ncclRemoteError\)/,
  },
  {
    what: "a system error of this host while all ranks are alive",
    env: { MOSAIC_EMULATED_NCCL_ERROR: "5:system" },
    code: useWorldCode,
    name: "DeviceError",
    message: /^rank [01]: allReduce #2 \(world\): NCCL: unhandled system error \(ncclSystemError\).*check \/dev\/shm/,
  },
  {
    what: "a collective that never completes",
    env: { MOSAIC_EMULATED_NCCL_HANG: "5" },
    code: useWorldCode,
    name: "CollectiveTimeoutError",
    message: /timed out after 1 s: rank [01] waits in allReduce #2 \(world\); rank [01] waits in the same call/,
  },
  {
    what: "a split that never completes",
    env: { MOSAIC_EMULATED_NCCL_HANG: "split" },
    code: `const contexts = ${openWorldCode}; await Promise.all(contexts.map((ctx) => ctx.world.split(0)))`,
    name: "CollectiveTimeoutError",
    message: /timed out after 1 s: rank [01] waits in split #1 \(world\)/,
  },
  {
    what: "a device that fails",
    env: { MOSAIC_EMULATED_FAILING_LAUNCH: "2" },
    code: useWorldCode,
    name: "DeviceError",
    message: /illegal memory access/,
  },
  {
    what: "a memory limit that is too low for the receive buffers of a reduction",
    env: {},
    code: useWorldCode.replace("cuda()", "cuda({ memoryLimit: 2 ** 20 })").replace("[4]", "[2 ** 18 - 4]"),
    name: "OutOfMemoryError",
    message: /out of memory for \d+ bytes of receive buffers/,
  },
  {
    what: "a missing job",
    env: {},
    code: "await nccl().connect({ device: cuda(), rank: 0, size: 2 })",
    name: "OptionError",
    message: /neither MASTER_PORT nor MOSAIC_RUN_ID in the environment; start the ranks with mosaic-run/,
  },
];

test.each(failureCases)("throws an error that describes $what", async ({ env, code, name, message }) => {
  const error = await getError(code, env);
  expect(error.message).toMatch(message);
  expect(error.name).toBe(name);
});

test("a reduction reclaims memory that the pool of another device holds unused", async () => {
  const code = `const contexts = await world(2, { device: () => cuda() });
    const xs = contexts.map((ctx) => full(ctx, [2 ** 18], 1));
    contexts[0].device.empty([14 * 2 ** 18], "float32")[Symbol.dispose]();
    await contexts[0].device.stream.synchronize();
    for (const ctx of contexts) ctx.world.allReduce(xs[ctx.rank]).wait();
    throw new Error("sum " + (await xs[1].read())[0])`;
  const { message } = await getError(code, { MOSAIC_EMULATED_MEMORY: String(16.5 * 2 ** 20) });
  expect(message).toBe("sum 2");
});

test("ncclSystem() returns the version, the library and the settings of NCCL", async () => {
  const { message } = await getError("throw new Error(JSON.stringify(ncclSystem()))", { NCCL_DEBUG: "WARN" });
  const { version, library, settings } = JSON.parse(message) as Record<string, unknown>;
  expect(version).toBe("2.27.3");
  expect(library).toMatch(/libnccl_emulated\.so$/);
  expect(settings).toMatchObject({ NCCL_DEBUG: "WARN" });
});

test("a library that loads but is not a usable NCCL is skipped for the next candidate", async () => {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-nccl-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  const compilerArgs = ["-shared", "-fPIC", "-x", "c", "-o", join(directory, "libnccl.so.2"), "/dev/null"];
  await promisify(execFile)(process.env.CC ?? "cc", compilerArgs);
  symlinkSync(emulatedLibraries.MOSAIC_NCCL_LIBRARY!, join(directory, "libnccl.so"));
  const env = { MOSAIC_NCCL_LIBRARY: "", LD_LIBRARY_PATH: directory };
  const { message } = await getError("throw new Error(ncclSystem().version)", env);
  expect(message).toBe("2.27.3");
});

/** Resolves to the error that `code` throws in a process with this environment. The process is killed if it hangs. */
async function getError(code: string, env: FailureCase["env"]): Promise<{ name: string; message: string }> {
  const resolveModule = (module: string): string => JSON.stringify(import.meta.resolve(module));
  const script = `const { nccl, ncclSystem, world } = await import(${resolveModule("../dist/index.js")});
    const { cuda } = await import(${resolveModule("@mosaic/kernels-cuda")});
    const { full } = await import(${resolveModule("@mosaic/core")});
    let thrown = { name: "nothing", message: "" };
    try { ${code}; } catch ({ name, message }) { thrown = { name, message }; }
    process.stdout.write(JSON.stringify(thrown), () => process.exit());`;
  const fullEnv = { ...process.env, ...emulatedLibraries, ...env };
  const node = ["--input-type=module", "--eval", script];
  const { stdout } = await promisify(execFile)(process.execPath, node, { env: fullEnv, timeout: 60_000 });
  return JSON.parse(stdout) as { name: string; message: string };
}
