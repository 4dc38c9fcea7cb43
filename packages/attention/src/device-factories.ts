import { hostname } from "node:os";
import { local } from "@mosaic/collectives-local";
import { type Collectives, type Device, environmentFlag, localRank, localWorldSize, OptionError } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";

// Declarations must not contain types of optional packages or of Node, so that programs without them also type-check.

/** Environment variables. */
export type Environment = Readonly<Record<string, string | undefined>>;

/** The exports of @mosaic/collectives-nccl that are used here. */
interface NcclPackage {
  nccl(options?: { readonly hostId?: string }): Collectives;
  ncclSystem(): unknown;
}

/** The exports of @mosaic/collectives-ucx that are used here. */
interface UcxPackage {
  ucx(): Collectives;
}

/** The fields of `cudaSystem` of @mosaic/kernels-cuda that are used here. */
export interface VisibleGpus {
  readonly gpus: readonly { readonly name: string; readonly problem?: string }[];
}

/** The exports of @mosaic/kernels-cuda that are used here. */
interface CudaPackage {
  cuda(options?: { readonly index?: number }): Device;
  cudaSystem(): VisibleGpus;
}

/**
 * Returns the options of `nccl`. NCCL allows one rank per GPU of a host. Ranks that share a GPU therefore need
 * different host ids.
 */
function createNcclOptions(): { hostId?: string } {
  return sharesGpus() && !process.env["NCCL_HOSTID"] ? { hostId: `${hostname()}/${getLocalRank().rank}` } : {};
}

/** Imports @mosaic/collectives-nccl, which is optional. */
export function importNccl(): Promise<NcclPackage> {
  return importOptional<NcclPackage>("@mosaic/collectives-nccl", 'init: collectives "nccl"');
}

/** Imports @mosaic/collectives-ucx, which is optional. */
function importUcx(): Promise<UcxPackage> {
  return importOptional<UcxPackage>("@mosaic/collectives-ucx", 'init: collectives "ucx", for CPUs of several hosts');
}

const deviceFactories = {
  cpu: async (): Promise<Device> => cpu(),
  cuda: (): Promise<Device> => createCuda(),
} as const;

const collectivesFactories = {
  local: async (): Promise<Collectives> => local(),
  nccl: async (): Promise<Collectives> => (await importNccl()).nccl(createNcclOptions()),
  ucx: async (): Promise<Collectives> => (await importUcx()).ucx(),
} as const;

/** Device that `init` accepts by name. */
export type DeviceName = keyof typeof deviceFactories;
/** Collectives that `init` accepts by name. */
export type CollectivesName = keyof typeof collectivesFactories;
export const deviceNames = Object.keys(deviceFactories) as readonly DeviceName[];
export const collectivesNames = Object.keys(collectivesFactories) as readonly CollectivesName[];

/** The collectives for ranks on devices of a type: within one host, and between hosts. */
const collectivesByDevice = {
  cpu: { withinHost: "local", betweenHosts: "ucx" },
  cuda: { withinHost: "nccl", betweenHosts: "nccl" },
} as const satisfies Record<DeviceName, Readonly<Record<string, CollectivesName>>>;

/** Returns the names of all collectives that support a device type; undefined for a third-party device. */
export function collectivesForDevice(device: string): readonly CollectivesName[] | undefined {
  if (!Object.hasOwn(collectivesByDevice, device)) return undefined;
  return [...new Set(Object.values(collectivesByDevice[device as DeviceName]))];
}

/** Returns the default collectives for a device type. */
export function getDefaultCollectives(device: DeviceName, spansHosts: boolean): CollectivesName {
  return collectivesByDevice[device][spansHosts ? "betweenHosts" : "withinHost"];
}

/** Returns the device type that collectives of a name support; "cpu" for third-party collectives. */
export function deviceForCollectives(name: string): DeviceName {
  return deviceNames.find((device) => collectivesForDevice(device)!.includes(name as CollectivesName)) ?? "cpu";
}

/** Creates the device of a name. Throws an OptionError for an unknown name, or if the package to install is missing. */
export function createDevice(name: DeviceName): Promise<Device> {
  return getFactory("init: device", name, deviceFactories)();
}

/** Creates the collectives of a name. Throws as `createDevice`. */
export function createCollectives(name: CollectivesName): Promise<Collectives> {
  return getFactory("init: collectives", name, collectivesFactories)();
}

/** Returns the device that MOSAIC_DEVICE names; undefined if it is unset, empty or "auto". */
export function readDeviceName(env: Environment = process.env): DeviceName | undefined {
  return readEnvironment(env, "MOSAIC_DEVICE", deviceFactories);
}

/** Returns the collectives that MOSAIC_COLLECTIVES names; undefined if it is unset, empty or "auto". */
export function readCollectivesName(env: Environment = process.env): CollectivesName | undefined {
  return readEnvironment(env, "MOSAIC_COLLECTIVES", collectivesFactories);
}

function readEnvironment<Name extends string>(
  env: Environment,
  variable: string,
  choices: Readonly<Record<Name, unknown>>,
): Name | undefined {
  const name = env[variable];
  if (name === undefined || name === "" || name === "auto") return undefined;
  if (Object.hasOwn(choices, name)) return name as Name;
  throw new OptionError({
    where: `environment variable ${variable}`,
    expected: `${quoteNames(Object.keys(choices))} or "auto"`,
    received: JSON.stringify(name),
  });
}

function getFactory<T>(where: string, name: string, choices: Readonly<Record<string, T>>): T {
  if (Object.hasOwn(choices, name)) return choices[name]!;
  throw new OptionError({
    where,
    expected: `${quoteNames(Object.keys(choices))} or a custom object`,
    received: JSON.stringify(name),
  });
}

/** Formats names for messages: quoted and separated by commas. */
export function quoteNames(names: readonly string[]): string {
  return names.map((each) => `"${each}"`).join(", ");
}

/** Imports an optional package. If it is not installed, throws an OptionError that states how to install it. */
export async function importOptional<Exports>(packageName: string, where: string): Promise<Exports> {
  try {
    return (await import(packageName)) as Exports;
  } catch (error) {
    if (!isModuleNotFound(error, packageName)) throw error;
    throw new OptionError(
      { where, expected: `the package ${packageName}`, received: "none", remedy: `run npm install ${packageName}` },
      { cause: error },
    );
  }
}

/** Returns whether the package itself is missing, as opposed to one of its dependencies. */
function isModuleNotFound(error: unknown, packageName: string): boolean {
  const { code, message } = error as NodeJS.ErrnoException;
  return code === "ERR_MODULE_NOT_FOUND" && message.includes(`'${packageName}'`);
}

/** The local rank of this process, and the number of ranks on its host, as set by the launcher. */
interface LocalRankInfo {
  readonly rank: number;
  readonly ranks: number;
}

/** Returns the local rank that the launcher sets; without a launcher, rank 0 of 1. */
export function getLocalRank(env: Environment = process.env): LocalRankInfo {
  const rank = localRank(env) ?? 0;
  return { rank, ranks: localWorldSize(env) ?? rank + 1 };
}

/**
 * Returns whether a job has ranks on other hosts, from the local world size if the launcher sets it, else from
 * GROUP_WORLD_SIZE.
 */
export function spansSeveralHosts(worldSize: number, env: Environment = process.env): boolean {
  const localRanks = localWorldSize(env);
  return localRanks === undefined ? worldSize > 1 && Number(env["GROUP_WORLD_SIZE"] || 1) > 1 : localRanks < worldSize;
}

/** Returns whether MOSAIC_SHARE_GPUS allows several ranks to use one GPU. */
export function sharesGpus(env: Environment = process.env): boolean {
  return environmentFlag("MOSAIC_SHARE_GPUS", env);
}

/**
 * Returns the GPU index of a rank among the GPUs that CUDA_VISIBLE_DEVICES exposes. It equals the local rank; with
 * sharing, ranks are assigned to GPUs round-robin.
 *
 * @throws OptionError if there are more ranks than GPUs and sharing is not allowed.
 */
export function selectGpuIndex({ rank, ranks }: LocalRankInfo, gpus: number, isShared: boolean): number {
  if (isShared && gpus > 0) return rank % gpus;
  if (ranks <= gpus) return rank;
  throw new OptionError({
    where: 'init: device "cuda"',
    expected: `a GPU for each of the ${ranks} ranks on this host`,
    received: `${gpus} visible GPUs`,
    remedy:
      "start one rank per GPU (mosaic-run --nproc-per-node gpu), check CUDA_VISIBLE_DEVICES, or share GPUs with MOSAIC_SHARE_GPUS=1",
  });
}

/** Creates the CUDA device of this rank. Throws the errors of `selectGpuIndex`, `importCuda` and `cuda()`. */
async function createCuda(): Promise<Device> {
  const { cuda, cudaSystem } = await importCuda();
  return cuda({ index: selectGpuIndex(getLocalRank(), cudaSystem().gpus.length, sharesGpus()) });
}

/** Imports @mosaic/kernels-cuda, which is optional. */
export function importCuda(): Promise<CudaPackage> {
  return importOptional<CudaPackage>("@mosaic/kernels-cuda", 'init: device "cuda"');
}
