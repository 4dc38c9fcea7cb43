import { existsSync } from "node:fs";
import { type Collectives, type Device, OptionError, defineOptions, option, type OptionsOf } from "@mosaic/core";
import {
  type CollectivesName,
  collectivesOfEnvironment,
  type DeviceName,
  deviceOfEnvironment,
  deviceServedBy,
  type Environment,
  gpuFor,
  importCuda,
  importNccl,
  makeCollectives,
  makeDevice,
  partners,
  placeOnHost,
  sharesGpus,
  type VisibleGpus,
} from "./device-factories.ts";

/** The options of `init`. */
interface Requested {
  readonly device?: Device | DeviceName;
  readonly collectives?: Collectives | CollectivesName;
}

/** What it works with. */
interface SelectedDevice {
  readonly device: Device;
  /** Whether `device` was made here, to be closed if nobody else comes to own it. */
  readonly isOurs: boolean;
  readonly collectives: Collectives | undefined;
}

/** Options first, then MOSAIC_DEVICE and MOSAIC_COLLECTIVES, then what goes with the other, then what is detected. */
export async function selectDevice(requested: Requested, worldSize: number): Promise<SelectedDevice> {
  const engine = requested.collectives ?? collectivesOfEnvironment();
  const place = requested.device ?? deviceOfEnvironment() ?? servedBy(engine) ?? (await detected(worldSize)).device;
  if (typeof place === "string" && typeof engine === "string") refuseMixed(place, engine);
  const connect = engine ?? (worldSize > 1 ? collectivesFor(place) : undefined);
  const device = typeof place === "string" ? await makeDevice(place) : place;
  const isOurs = device !== place;
  try {
    return { device, isOurs, collectives: typeof connect === "string" ? await makeCollectives(connect) : connect };
  } catch (error) {
    if (isOurs) device[Symbol.dispose]();
    throw error;
  }
}

function servedBy(engine: Collectives | CollectivesName | undefined): DeviceName | undefined {
  return engine && deviceServedBy(typeof engine === "string" ? engine : engine.name);
}

/** What connects such devices; undefined for a third party's. */
function collectivesFor(place: Device | DeviceName): CollectivesName | undefined {
  return partners[(typeof place === "string" ? place : place.type) as DeviceName];
}

function refuseMixed(device: DeviceName, collectives: CollectivesName): void {
  const partner = partners[device];
  // What is no name at all is refused, with all names, by who makes it.
  if (partner === undefined || partner === collectives || !Object.values(partners).includes(collectives)) return;
  throw new OptionError({
    where: "init: collectives",
    expected: `"${partner}" with device "${device}"`,
    received: `"${collectives}"`,
    remedy: "name neither, or only one; also look at MOSAIC_DEVICE and MOSAIC_COLLECTIVES",
  });
}

let hasNoted = false;

/** What is detected; the first rank of each host warns, once, of a GPU that lies idle. */
async function detected(worldSize: number): Promise<Detected> {
  const found = await detect({ worldSize });
  if (found.note !== undefined && !hasNoted && placeOnHost().rank === 0) {
    hasNoted = true;
    process.emitWarning(found.note, { type: "MosaicWarning", code: "MOSAIC_GPU_IDLE" });
  }
  return found;
}

/** The default device of `init`. */
export interface Detected {
  readonly device: DeviceName;
  readonly collectives: CollectivesName;
  /** There is a GPU, but it will not be used: why, and what to do about it. */
  readonly note?: string;
}

export const detectOptions = defineOptions("detect", {
  /** Ranks of the whole job. Default: WORLD_SIZE, else 1. */
  worldSize: option.integer({ min: 1, optional: true }),
  /** Ranks on this host. Default: LOCAL_WORLD_SIZE, else 1. */
  localRanks: option.integer({ min: 1, optional: true }),
});
/** What to detect for. */
export type DetectOptions = OptionsOf<typeof detectOptions>;

/** What detection asks of a machine; tests have machines of their own. */
export interface Machine {
  readonly env: Environment;
  exists(path: string): boolean;
  cuda(): Promise<VisibleGpus>;
  /** Throws if NCCL cannot be used. */
  nccl(): Promise<unknown>;
}

const thisMachine: Machine = {
  env: process.env,
  exists: existsSync,
  cuda: async () => (await importCuda()).cudaSystem(),
  nccl: async () => (await importNccl()).ncclSystem(),
};

/**
 * What `init` chooses where its options leave it open: what MOSAIC_DEVICE and MOSAIC_COLLECTIVES name; else a GPU for each rank
 * and NCCL between them, if this machine has all of that in working order; else the CPU and shared memory. All ranks of a host
 * choose alike, for no rank opens anything to decide.
 *
 * @example
 * ```ts
 * import { detect } from "@mosaic/attention";
 * const { device, collectives } = await detect();
 * [device, collectives].join(" and "); // "cuda and nccl", or "cpu and local"
 * ```
 * @throws OptionError if those variables name what does not exist, and for options that do not; for nothing else.
 */
export async function detect(options?: DetectOptions): Promise<Detected> {
  detectOptions.parse(options);
  return detectOn(thisMachine, options ?? {});
}

/** `detect` for a machine. */
export async function detectOn(machine: Machine, options: DetectOptions): Promise<Detected> {
  const requested = collectivesOfEnvironment(machine.env);
  const device = deviceOfEnvironment(machine.env) ?? (requested && deviceServedBy(requested));
  if (device !== undefined) return { device, collectives: requested ?? partners[device] };
  const why = await whyNoGpu(machine, options);
  if (why === undefined) return { device: "cuda", collectives: "nccl" };
  const onCpu = { device: "cpu", collectives: "local" } as const;
  if (!showsGpu(machine)) return onCpu;
  const how = "To run there on purpose, set MOSAIC_DEVICE=cpu";
  return { ...onCpu, note: `There is an NVIDIA GPU, but this runs on the CPU: ${why}. ${how}` };
}

async function whyNoGpu(machine: Machine, options: DetectOptions): Promise<string | undefined> {
  const { env } = machine;
  const { worldSize = Number(env["WORLD_SIZE"] || 1), localRanks = placeOnHost(env).ranks } = options;
  try {
    const { gpus } = await machine.cuda();
    for (let rank = 0; rank < localRanks; rank++) {
      const index = gpuFor({ rank, ranks: localRanks }, gpus.length, sharesGpus(env));
      const { name, problem } = gpus[index]!;
      if (problem !== undefined) return `GPU ${index}, ${name}: ${problem}`;
    }
    if (worldSize > 1) await machine.nccl();
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}

/** A machine that shows nothing of NVIDIA, or was configured to hide it, needs no explanation. */
export function showsGpu({ env, exists }: Pick<Machine, "env" | "exists">): boolean {
  if (/^\s*(-.*)?$/.test(env["CUDA_VISIBLE_DEVICES"] ?? "0")) return false;
  return Boolean(env["MOSAIC_CUDA_LIBRARY"]) || ["/dev/nvidiactl", "/proc/driver/nvidia/version"].some(exists);
}
