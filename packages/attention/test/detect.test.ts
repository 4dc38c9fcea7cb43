import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { detect, detectOn, type DetectionSystem } from "../src/detect.ts";
import { selectGpuIndex, getLocalRank, sharesGpus } from "../src/device-factories.ts";

const emulatedLibrary = fileURLToPath(
  new URL("../../kernels-cuda/build-emulated/libcuda_emulated.so", import.meta.url),
);
const gpu = { name: "H200", capability: "9.0", bytes: 1 };

/** Creates a machine with `gpus`, or with a driver that fails. */
function createSystem(gpus: readonly object[] | Error, overrides: Partial<DetectionSystem> = {}): DetectionSystem {
  return {
    env: {},
    exists: (path) => path === "/dev/nvidiactl",
    queryGpus: async () => {
      if (gpus instanceof Error) throw gpus;
      return { driver: "13.0", library: "libcuda.so.1", gpus: gpus as [typeof gpu] };
    },
    checkNccl: async () => {},
    ...overrides,
  };
}

const throwNoNccl = async (): Promise<never> => {
  throw new Error("no libnccl.so.2");
};

describe("detection", () => {
  it("selects GPUs if there are enough, and NCCL between them", async () => {
    const gpuResult = { device: "cuda", collectives: "nccl" };
    expect(await detectOn(createSystem([gpu]), {})).toEqual(gpuResult);
    expect(await detectOn(createSystem([gpu, gpu]), { worldSize: 2, localRanks: 2 })).toEqual(gpuResult);
    expect(await detectOn(createSystem([gpu], { checkNccl: throwNoNccl }), { worldSize: 1 })).toEqual(gpuResult);
    const env = { RANK: "0", WORLD_SIZE: "4", LOCAL_WORLD_SIZE: "4", MOSAIC_SHARE_GPUS: "1" };
    expect(await detectOn(createSystem([gpu], { env }), {})).toEqual(gpuResult);
  });

  it("selects the CPU without a warning if there is no NVIDIA device or if GPUs are hidden", async () => {
    const cpuResult = { device: "cpu", collectives: "local" };
    const noDriverError = new Error("no CUDA driver");
    expect(await detectOn(createSystem(noDriverError, { exists: () => false }), {})).toEqual(cpuResult);
    expect(await detectOn(createSystem(noDriverError, { env: { CUDA_VISIBLE_DEVICES: "" } }), {})).toEqual(cpuResult);
    expect(await detectOn(createSystem([], { env: { CUDA_VISIBLE_DEVICES: "-1" } }), {})).toEqual(cpuResult);
  });

  const multiHostEnv = { RANK: "0", WORLD_SIZE: "4", LOCAL_WORLD_SIZE: "2", GROUP_WORLD_SIZE: "2" };

  it.each([
    ["ranks on several hosts", multiHostEnv, {}, "cpu and ucx"],
    [
      "a launcher that sets the number of hosts only",
      { RANK: "0", WORLD_SIZE: "4", GROUP_WORLD_SIZE: "2" },
      {},
      "cpu and ucx",
    ],
    ["one rank a host", { RANK: "0", WORLD_SIZE: "2", LOCAL_WORLD_SIZE: "1" }, {}, "cpu and ucx"],
    ["options", {}, { worldSize: 4, localRanks: 3 }, "cpu and ucx"],
    [
      "all ranks on one host",
      { RANK: "0", WORLD_SIZE: "4", LOCAL_WORLD_SIZE: "4", GROUP_WORLD_SIZE: "1" },
      {},
      "cpu and local",
    ],
    ["a launcher that sets neither", { RANK: "0", WORLD_SIZE: "4" }, {}, "cpu and local"],
    ["a world of this host's ranks", multiHostEnv, { worldSize: 2 }, "cpu and local"],
    ["one rank", { GROUP_WORLD_SIZE: "2" }, {}, "cpu and local"],
    ["a device by name", { ...multiHostEnv, MOSAIC_DEVICE: "cpu" }, {}, "cpu and ucx"],
    ["collectives by name", { ...multiHostEnv, MOSAIC_COLLECTIVES: "local" }, {}, "cpu and local"],
    ["UCX by name on one host", { MOSAIC_COLLECTIVES: "ucx" }, {}, "cpu and ucx"],
  ])("selects collectives for CPU ranks: %s", async (_, env, options, expected) => {
    const detected = await detectOn(createSystem(new Error("no CUDA driver"), { env, exists: () => false }), options);
    expect(`${detected.device} and ${detected.collectives}`).toBe(expected);
  });

  it("selects NCCL for GPUs on several hosts, and UCX for CPUs if there are too few GPUs", async () => {
    expect(await detectOn(createSystem([gpu, gpu], { env: multiHostEnv }), {})).toEqual({
      device: "cuda",
      collectives: "nccl",
    });
    const detectedWithoutUcx = await detectOn(createSystem([gpu], { env: multiHostEnv }), {});
    expect(detectedWithoutUcx).toMatchObject({
      device: "cpu",
      collectives: "ucx",
      warning: expect.stringContaining("on the CPU"),
    });
  });

  it.each([
    [
      "a driver that fails",
      createSystem(new Error("the driver is too old")),
      {},
      /on the CPU: the driver is too old\./,
    ],
    ["no NCCL", createSystem([gpu, gpu], { checkNccl: throwNoNccl }), { worldSize: 2, localRanks: 2 }, /: no libnccl/],
    [
      "more ranks than GPUs",
      createSystem([gpu]),
      { worldSize: 4, localRanks: 4 },
      /each of the 4 ranks .* received 1 .*gpu/,
    ],
    ["an old GPU", createSystem([gpu, { ...gpu, problem: "too old" }]), { localRanks: 2 }, /GPU 1, H200: too old/],
  ])("selects the CPU with %s, and warns about the reason", async (_, system, options, warningPattern) => {
    const detected = await detectOn(system, options);
    expect(detected).toEqual({ device: "cpu", collectives: "local", warning: expect.stringMatching(warningPattern) });
    expect(detected.warning).toContain("MOSAIC_DEVICE=cpu");
  });
});

describe("a rank's GPU", () => {
  it("has the index of the local rank, modulo the number of GPUs if ranks share them", () => {
    expect([0, 1, 2, 3].map((rank) => selectGpuIndex({ rank, ranks: 4 }, 4, false))).toEqual([0, 1, 2, 3]);
    expect([0, 1, 2, 3].map((rank) => selectGpuIndex({ rank, ranks: 4 }, 2, true))).toEqual([0, 1, 0, 1]);
    expect(() => selectGpuIndex({ rank: 0, ranks: 4 }, 2, false)).toThrow(/4 ranks .*received 2 .*MOSAIC_SHARE_GPUS=1/);
    expect(() => selectGpuIndex({ rank: 0, ranks: 1 }, 0, true)).toThrow(/received 0/);
  });

  it("is determined by the environment variables of the launcher", () => {
    expect(getLocalRank({ LOCAL_RANK: "2", LOCAL_WORLD_SIZE: "4" })).toEqual({ rank: 2, ranks: 4 });
    expect(getLocalRank({ LOCAL_RANK: "2" })).toEqual({ rank: 2, ranks: 3 });
    expect(getLocalRank({})).toEqual({ rank: 0, ranks: 1 });
    expect(["1", "yes", "0", "false", ""].map((text) => sharesGpus({ MOSAIC_SHARE_GPUS: text }))).toEqual([
      ...[true, true],
      ...[false, false, false],
    ]);
  });
});

/** Runs init() in a separate process with this environment. Returns the device, the warnings and the error. */
async function runInit(
  env: Readonly<Record<string, string>>,
  options = "{}",
  flags: readonly string[] = [],
): Promise<string> {
  const entry = fileURLToPath(new URL("../dist/index.js", import.meta.url));
  const script = `const mosaic = await import(${JSON.stringify(entry)});
    const reported = [];
    process.on("warning", ({ name, code, message }) => reported.push(name, code, message));
    try {
      for (let i = 0; i < 2; i++) {
        const ctx = await mosaic.init(${options});
        const x = mosaic.ones(ctx, [3]);
        reported.push(ctx.device.type + ctx.device.index + " " + (await x.read()).join("+"));
        x.dispose();
        await ctx.close();
      }
    } catch ({ name, message }) { reported.push(name, message); }
    setImmediate(() => process.stdout.write(reported.join("\\n"), () => process.exit()));`;
  const childEnv = { ...process.env, MOSAIC_DEVICE: "", MOSAIC_CUDA_LIBRARY: emulatedLibrary, ...env };
  const node = [...flags, "--no-warnings", "--input-type=module", "--eval", script];
  const { stdout } = await promisify(execFile)(process.execPath, node, { env: childEnv, timeout: 60_000 });
  return stdout;
}

it("detect rejects unknown options", () =>
  expect(detect({ worldsize: 2 } as object)).rejects.toThrow(/detect: expected options among worldSize, localRanks/));

describe("init", () => {
  const ones = "1+1+1";

  it("computes on an available GPU", async () => {
    expect(await runInit({})).toBe(`cuda0 ${ones}\ncuda0 ${ones}`);
    expect(await runInit({ MOSAIC_EMULATED_DEVICES: "2", LOCAL_RANK: "1" })).toContain(`cuda1 ${ones}`);
    const sharedGpuEnv = { LOCAL_RANK: "3", LOCAL_WORLD_SIZE: "4", MOSAIC_SHARE_GPUS: "1" };
    expect(await runInit({ ...sharedGpuEnv, MOSAIC_EMULATED_DEVICES: "2" })).toContain(`cuda1 ${ones}`);
  });

  it("prefers options to the environment, and the environment to detection", async () => {
    expect(await runInit({ MOSAIC_DEVICE: "cpu" })).toBe(`cpu0 ${ones}\ncpu0 ${ones}`);
    expect(await runInit({ MOSAIC_DEVICE: "cpu" }, `{ device: "cuda" }`)).toContain("cuda0");
    expect(await runInit({}, `{ collectives: "local" }`)).toContain("cpu0");
    expect(await runInit({ MOSAIC_COLLECTIVES: "local" })).toContain("cpu0");
  });

  it("warns once about an unused GPU, on the first rank of a host", async () => {
    const brokenDriverEnv = { MOSAIC_EMULATED_INIT: "803" };
    const initResult = await runInit(brokenDriverEnv);
    expect(initResult).toMatch(
      /^MosaicWarning\nMOSAIC_GPU_IDLE\nAn NVIDIA GPU is .* on the CPU: the CUDA driver cannot be initialized/m,
    );
    expect(initResult.match(/MosaicWarning/g)).toHaveLength(1);
    expect(initResult.match(/cpu0/g)).toHaveLength(2);
    expect(await runInit({ ...brokenDriverEnv, LOCAL_RANK: "1" })).toBe(`cpu0 ${ones}\ncpu0 ${ones}`);
  });

  it.each([
    ["a driver that is asked for and missing", { MOSAIC_CUDA_LIBRARY: "/none.so" }, /^DeviceError\nno CUDA driver/],
    ["more ranks than GPUs", { LOCAL_WORLD_SIZE: "2" }, /^OptionError\n.*each of the 2 ranks/],
    [
      "collectives of another device",
      { MOSAIC_COLLECTIVES: "local" },
      /expected "nccl" with device "cuda", received "local"/,
    ],
  ])("rejects %s", async (_, env, message) => {
    expect(await runInit({ MOSAIC_DEVICE: "cuda", ...env })).toMatch(message);
    expect(await runInit(env, `{ device: "cuda" }`)).toMatch(message);
  });

  const otherHostEnv = { MOSAIC_DEVICE: "cpu", RANK: "0", LOCAL_RANK: "0", WORLD_SIZE: "2", LOCAL_WORLD_SIZE: "1" };
  const missingUcxEnv = { MOSAIC_UCX_LIBRARY: "/none/libucp.so.0" };

  it("requires UCX for CPU ranks on several hosts, or if UCX is selected", async () => {
    const message = /^AddonLoadError\nucx: no usable UCX library: .*; install UCX 1\.13 or newer/;
    expect(await runInit({ ...otherHostEnv, ...missingUcxEnv })).toMatch(message);
    expect(await runInit({ ...otherHostEnv, ...missingUcxEnv, MOSAIC_DEVICE: "" }, `{ device: mosaic.cpu() }`)).toMatch(
      message,
    );
    expect(await runInit({ ...missingUcxEnv, MOSAIC_COLLECTIVES: "ucx" }, "{ worldSize: 2, rank: 0 }")).toMatch(
      message,
    );
    expect(await runInit(missingUcxEnv, `{ collectives: "ucx", worldSize: 2, rank: 0 }`)).toMatch(message);
    expect(await runInit(otherHostEnv, `{ collectives: "local" }`)).toMatch(
      /^OptionError\nlocal collectives: expected all ranks on this host.*@mosaic\/collectives-ucx/,
    );
  });

  it("names the package for CPUs on several hosts if it is not installed", async () => {
    const hooks = `export async function resolve(name, context, next) {
      if (name !== "@mosaic/collectives-ucx") return next(name, context);
      throw Object.assign(new Error("Cannot find package '" + name + "'"), { code: "ERR_MODULE_NOT_FOUND" });
    }`;
    const createDataUrl = (code: string): string => `data:text/javascript,${encodeURIComponent(code)}`;
    const registerHooksUrl = createDataUrl(
      `import { register } from "node:module"; register(${JSON.stringify(createDataUrl(hooks))});`,
    );
    expect(await runInit(otherHostEnv, "{}", ["--import", registerHooksUrl])).toBe(
      'OptionError\ninit: collectives "ucx", for CPUs of several hosts: expected the package ' +
        "@mosaic/collectives-ucx, received none; run npm install @mosaic/collectives-ucx",
    );
  });

  it.each([
    ["cuda", "ucx", /expected "nccl" with device "cuda", received "ucx"/],
    ["cpu", "nccl", /expected "local" or "ucx" with device "cpu", received "nccl"/],
  ])("rejects device %s with collectives %s", async (device, collectives, message) => {
    expect(await runInit({}, JSON.stringify({ device, collectives }))).toMatch(message);
    expect(await runInit({ MOSAIC_DEVICE: device, MOSAIC_COLLECTIVES: collectives })).toMatch(message);
  });

  it("rejects invalid values of MOSAIC_DEVICE, and accepts auto", async () => {
    const message =
      /^OptionError\nenvironment variable MOSAIC_DEVICE: expected "cpu", "cuda" or "auto", received "tpu"/;
    expect(await runInit({ MOSAIC_DEVICE: "tpu" })).toMatch(message);
    expect(await runInit({ MOSAIC_DEVICE: "auto" })).toContain("cuda0");
  });
});
