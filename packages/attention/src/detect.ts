import { existsSync } from "node:fs";
import {
  type Collectives,
  type Device,
  launchEnvironment,
  OptionError,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import {
  type CollectivesName,
  readCollectivesName,
  collectivesNames,
  type DeviceName,
  readDeviceName,
  deviceForCollectives,
  type Environment,
  selectGpuIndex,
  importCuda,
  importNccl,
  collectivesForDevice,
  createCollectives,
  createDevice,
  getDefaultCollectives,
  getLocalRank,
  spansSeveralHosts,
  quoteNames,
  sharesGpus,
  type VisibleGpus,
} from "./device-factories.ts";

/** The device and collectives that the options of `init` request. */
interface RequestedHardware {
  readonly device?: Device | DeviceName;
  readonly collectives?: Collectives | CollectivesName;
}

/** The device and collectives that `init` uses. */
interface SelectedHardware {
  readonly device: Device;
  /** Whether `device` was created here, so that it must be disposed if no context takes ownership. */
  readonly isOwned: boolean;
  readonly collectives: Collectives | undefined;
}

/**
 * Selects the device and the collectives. In order of precedence: options, MOSAIC_DEVICE and MOSAIC_COLLECTIVES, the
 * default for the other of the two, and detection.
 */
export async function selectHardware(
  requestedHardware: RequestedHardware,
  worldSize: number,
): Promise<SelectedHardware> {
  const collectives = requestedHardware.collectives ?? readCollectivesName();
  const deviceOrName =
    requestedHardware.device ??
    readDeviceName() ??
    selectDeviceName(collectives) ??
    (await detectAndWarn(worldSize)).device;
  if (typeof deviceOrName === "string" && typeof collectives === "string") checkCompatible(deviceOrName, collectives);
  const collectivesOrName = collectives ?? (worldSize > 1 ? selectCollectives(deviceOrName, worldSize) : undefined);
  const device = typeof deviceOrName === "string" ? await createDevice(deviceOrName) : deviceOrName;
  const isOwned = device !== deviceOrName;
  try {
    return {
      device,
      isOwned,
      collectives:
        typeof collectivesOrName === "string" ? await createCollectives(collectivesOrName) : collectivesOrName,
    };
  } catch (error) {
    if (isOwned) device[Symbol.dispose]();
    throw error;
  }
}

function selectDeviceName(collectives: Collectives | CollectivesName | undefined): DeviceName | undefined {
  return collectives && deviceForCollectives(typeof collectives === "string" ? collectives : collectives.name);
}

/** Returns the default collectives of a device; undefined for a third-party device. */
function selectCollectives(deviceOrName: Device | DeviceName, worldSize: number): CollectivesName | undefined {
  const type = typeof deviceOrName === "string" ? deviceOrName : deviceOrName.type;
  return collectivesForDevice(type) && getDefaultCollectives(type as DeviceName, spansSeveralHosts(worldSize));
}

function checkCompatible(device: DeviceName, collectives: CollectivesName): void {
  const compatibleNames = collectivesForDevice(device);
  // Unknown names are rejected by `createDevice` and `createCollectives`, whose errors list all names.
  if (compatibleNames === undefined || compatibleNames.includes(collectives) || !collectivesNames.includes(collectives))
    return;
  throw new OptionError({
    where: "init: collectives",
    expected: `${quoteNames(compatibleNames).replace(",", " or")} with device "${device}"`,
    received: `"${collectives}"`,
    remedy: "omit both options, or set only one of them; check MOSAIC_DEVICE and MOSAIC_COLLECTIVES",
  });
}

let hasWarned = false;

/** Returns the result of `detect`. On the first rank of each host, emits a warning, once, if a GPU is not used. */
async function detectAndWarn(worldSize: number): Promise<DetectedHardware> {
  const hardware = await detect({ worldSize });
  if (hardware.warning !== undefined && !hasWarned && getLocalRank().rank === 0) {
    hasWarned = true;
    process.emitWarning(hardware.warning, { type: "MosaicWarning", code: "MOSAIC_GPU_IDLE" });
  }
  return hardware;
}

/** The default device and collectives of `init`. */
export interface DetectedHardware {
  readonly device: DeviceName;
  readonly collectives: CollectivesName;
  /** If there is a GPU that will not be used: the reason, and the remedy. */
  readonly warning?: string;
}

export const detectOptions = defineOptions("detect", {
  /** Number of ranks of the whole job. Default: the value that the launcher sets, else 1. */
  worldSize: option.integer({ min: 1, optional: true }),
  /** Number of ranks on this host. Default: the value that the launcher sets, else 1. */
  localRanks: option.integer({ min: 1, optional: true }),
});
/** Options of `detect`. */
export type DetectOptions = OptionsOf<typeof detectOptions>;

/** The properties of a machine that detection reads. Tests provide simulated machines. */
export interface DetectionSystem {
  readonly env: Environment;
  exists(path: string): boolean;
  queryGpus(): Promise<VisibleGpus>;
  /** Throws if NCCL cannot be used. */
  checkNccl(): Promise<unknown>;
}

const currentSystem: DetectionSystem = {
  env: process.env,
  exists: existsSync,
  queryGpus: async () => (await importCuda()).cudaSystem(),
  checkNccl: async () => (await importNccl()).ncclSystem(),
};

/**
 * Returns the device and collectives that `init` selects for omitted options: those that MOSAIC_DEVICE and
 * MOSAIC_COLLECTIVES name; else a GPU for each rank and NCCL, if all of these work on this machine; else the CPU and
 * shared memory, or UCX if ranks are on several hosts. All ranks of a host get the same result, because detection does
 * not open any device.
 *
 * @example
 * ```ts
 * import { detect } from "@mosaic/attention";
 * const { device, collectives } = await detect();
 * [device, collectives].join(" and "); // "cuda and nccl", "cpu and local", or "cpu and ucx"
 * ```
 * @throws OptionError for unknown names in these variables and for invalid options; for nothing else.
 */
export async function detect(options?: DetectOptions): Promise<DetectedHardware> {
  detectOptions.parse(options);
  return detectOn(currentSystem, options ?? {});
}

/** As `detect`, for a given system. */
export async function detectOn(system: DetectionSystem, options: DetectOptions): Promise<DetectedHardware> {
  const requestedCollectives = readCollectivesName(system.env);
  const device = readDeviceName(system.env) ?? (requestedCollectives && deviceForCollectives(requestedCollectives));
  const createResult = (name: DeviceName): DetectedHardware => ({
    device: name,
    collectives: requestedCollectives ?? getDefaultCollectives(name, spansHosts(system, options)),
  });
  if (device !== undefined) return createResult(device);
  const problem = await findGpuProblem(system, options);
  if (problem === undefined) return createResult("cuda");
  const cpuResult = createResult("cpu");
  if (!hasGpu(system)) return cpuResult;
  const cpuHint = "To run on the CPU without this warning, set MOSAIC_DEVICE=cpu";
  return {
    ...cpuResult,
    warning: `An NVIDIA GPU is present, but this process runs on the CPU: ${problem}. ${cpuHint}`,
  };
}

function spansHosts({ env }: DetectionSystem, { worldSize, localRanks }: DetectOptions): boolean {
  const size = worldSize ?? launchEnvironment(env).worldSize;
  return localRanks === undefined ? spansSeveralHosts(size, env) : localRanks < size;
}

async function findGpuProblem(system: DetectionSystem, options: DetectOptions): Promise<string | undefined> {
  const { env } = system;
  try {
    const { worldSize = launchEnvironment(env).worldSize, localRanks = getLocalRank(env).ranks } = options;
    const { gpus } = await system.queryGpus();
    for (let rank = 0; rank < localRanks; rank++) {
      const index = selectGpuIndex({ rank, ranks: localRanks }, gpus.length, sharesGpus(env));
      const { name, problem } = gpus[index]!;
      if (problem !== undefined) return `GPU ${index}, ${name}: ${problem}`;
    }
    if (worldSize > 1) await system.checkNccl();
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}

/** Returns whether an NVIDIA GPU is present and not hidden by CUDA_VISIBLE_DEVICES. Only then is a warning useful. */
export function hasGpu({ env, exists }: Pick<DetectionSystem, "env" | "exists">): boolean {
  if (/^\s*(-.*)?$/.test(env["CUDA_VISIBLE_DEVICES"] ?? "0")) return false;
  return Boolean(env["MOSAIC_CUDA_LIBRARY"]) || ["/dev/nvidiactl", "/proc/driver/nvidia/version"].some(exists);
}
