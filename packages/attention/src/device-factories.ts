import { hostname } from "node:os";
import { local } from "@mosaic/collectives-local";
import { type Collectives, type Device, localRank, localWorldSize, OptionError } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";

// Types of packages that need not be installed, and of Node, must not appear in declarations: programs without them are type-checked, too.

/** Environment variables. */
export type Environment = Readonly<Record<string, string | undefined>>;

/** What is used of @mosaic/collectives-nccl. */
interface NcclPackage {
  nccl(options?: { readonly hostId?: string }): Collectives;
  ncclSystem(): unknown;
}

/** What is used of @mosaic/collectives-ucx. */
interface UcxPackage {
  ucx(): Collectives;
}

/** What is used of `cudaSystem` of @mosaic/kernels-cuda. */
export interface VisibleGpus {
  readonly gpus: readonly { readonly name: string; readonly problem?: string }[];
}

/** What is used of @mosaic/kernels-cuda. */
interface CudaPackage {
  cuda(options?: { readonly index?: number }): Device;
  cudaSystem(): VisibleGpus;
}

/** NCCL takes one rank a GPU of a host; it does not see whether ranks are on different hosts. */
function createNcclOptions(): { hostId?: string } {
  return sharesGpus() && !process.env["NCCL_HOSTID"] ? { hostId: `${hostname()}/${getLocalRank().rank}` } : {};
}

/** @mosaic/collectives-nccl, which need not be installed. */
export function importNccl(): Promise<NcclPackage> {
  return importOptional<NcclPackage>("@mosaic/collectives-nccl", 'init: collectives "nccl"');
}

/** @mosaic/collectives-ucx, which need not be installed. */
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

export type DeviceName = keyof typeof deviceFactories;
export type CollectivesName = keyof typeof collectivesFactories;
export const deviceNames = Object.keys(deviceFactories) as readonly DeviceName[];
export const collectivesNames = Object.keys(collectivesFactories) as readonly CollectivesName[];

/** What can connect ranks that compute on devices of a type: within one host, and also between hosts. */
const collectivesByDevice = {
  cpu: { withinHost: "local", betweenHosts: "ucx" },
  cuda: { withinHost: "nccl", betweenHosts: "nccl" },
} as const satisfies Record<DeviceName, Readonly<Record<string, CollectivesName>>>;

/** The names of all that serve devices of a type; undefined for a third party's. */
export function collectivesForDevice(device: string): readonly CollectivesName[] | undefined {
  if (!Object.hasOwn(collectivesByDevice, device)) return undefined;
  return [...new Set(Object.values(collectivesByDevice[device as DeviceName]))];
}

/** What connects them unless something else was requested. */
export function getDefaultCollectives(device: DeviceName, spansHosts: boolean): CollectivesName {
  return collectivesByDevice[device][spansHosts ? "betweenHosts" : "withinHost"];
}

/** The device that collectives of that name serve; for third-party ones, the CPU. */
export function deviceForCollectives(name: string): DeviceName {
  return deviceNames.find((device) => collectivesForDevice(device)!.includes(name as CollectivesName)) ?? "cpu";
}

/** The device of that name. Throws an OptionError for another name, or that names the package to install. */
export function createDevice(name: DeviceName): Promise<Device> {
  return getFactory("init: device", name, deviceFactories)();
}

/** The collectives of that name; errors as above. */
export function createCollectives(name: CollectivesName): Promise<Collectives> {
  return getFactory("init: collectives", name, collectivesFactories)();
}

/** The device that MOSAIC_DEVICE names; undefined if nothing, or "auto". */
export function readDeviceName(env: Environment = process.env): DeviceName | undefined {
  return readEnvironment(env, "MOSAIC_DEVICE", deviceFactories);
}

/** The collectives that MOSAIC_COLLECTIVES names. */
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

/** Names as messages list them. */
export function quoteNames(names: readonly string[]): string {
  return names.map((each) => `"${each}"`).join(", ");
}

/** The exports of a package that need not be installed; an OptionError that reports how to install it, if it is not. */
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

/** The package itself is missing, not something that it needs. */
function isModuleNotFound(error: unknown, packageName: string): boolean {
  const { code, message } = error as NodeJS.ErrnoException;
  return code === "ERR_MODULE_NOT_FOUND" && message.includes(`'${packageName}'`);
}

/** This process among those of its host, as the launcher numbers them. */
interface LocalRankInfo {
  readonly rank: number;
  readonly ranks: number;
}

/** As the launcher sets it; without one, alone. */
export function getLocalRank(env: Environment = process.env): LocalRankInfo {
  const rank = localRank(env) ?? 0;
  return { rank, ranks: localWorldSize(env) ?? rank + 1 };
}

/** Whether a job of that many ranks has some on another host, by the ranks that launchers count here, else by GROUP_WORLD_SIZE. */
export function spansSeveralHosts(worldSize: number, env: Environment = process.env): boolean {
  const localRanks = localWorldSize(env);
  return localRanks === undefined ? worldSize > 1 && Number(env["GROUP_WORLD_SIZE"] || 1) > 1 : localRanks < worldSize;
}

/** Whether MOSAIC_SHARE_GPUS lets several ranks use one GPU. */
export function sharesGpus(env: Environment = process.env): boolean {
  return !["", "0", "false", "no", "off", undefined].includes(env["MOSAIC_SHARE_GPUS"]?.toLowerCase());
}

/**
 * The GPU of a rank: the one of its number on this host, among those that CUDA_VISIBLE_DEVICES leaves; with sharing, ranks are
 * dealt out in turn.
 *
 * @throws OptionError if there are more ranks than GPUs and they may not share.
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

/** This rank's GPU. Throws what `selectGpuIndex` does, an OptionError without the package, and what `cuda()` throws. */
async function createCuda(): Promise<Device> {
  const { cuda, cudaSystem } = await importCuda();
  return cuda({ index: selectGpuIndex(getLocalRank(), cudaSystem().gpus.length, sharesGpus()) });
}

/** @mosaic/kernels-cuda, which need not be installed. */
export function importCuda(): Promise<CudaPackage> {
  return importOptional<CudaPackage>("@mosaic/kernels-cuda", 'init: device "cuda"');
}
