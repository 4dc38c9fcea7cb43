import type { MakeWorld } from "@mosaic/conformance";
import type { Context, Device, DType, ProcessGroup, Shape, Tensor } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { type UcxOptions, type UcxWorldOptions, world } from "../src/index.ts";

/** Maps a rank to its host number. */
export type HostOf = (rank: number) => number;

/** Every rank is on its own host: all pairs communicate over UCX. */
export const oneHostPerRank: HostOf = (rank) => rank;
/** Two ranks per host; an odd last rank is alone. Neighbors communicate over shared memory. */
export const twoRanksPerHost: HostOf = (rank) => Math.floor(rank / 2);
/** Ranks alternate between two hosts: neighbors communicate over UCX, others over shared memory. */
export const alternatingHosts: HostOf = (rank) => rank % 2;
/** All ranks are on one host: shared memory only. */
export const oneHost: HostOf = () => 0;

/** Makes worlds in one process, for the suites. */
export function makeWorld(ucx: UcxOptions, hostOf: HostOf = oneHostPerRank): MakeWorld {
  return (size, { wrapDevice, ...options }) => {
    const hosts = Array.from({ length: size }, (_, rank) => hostOf(rank));
    return world(size, { ...options, ucx, hosts, device: () => wrapDevice(cpu({ threads: 1 })) });
  };
}

/** Ranks of one process. */
export interface Ranks extends AsyncDisposable {
  readonly contexts: readonly Context[];
  readonly groups: readonly ProcessGroup[];
  readonly devices: readonly Device[];
}

export async function openRanks(size: number, options: Omit<UcxWorldOptions, "device"> = {}): Promise<Ranks> {
  const contexts = await world(size, { timeout: 20, ...options, device: () => cpu({ threads: 1 }) });
  return {
    contexts,
    devices: contexts.map((context) => context.device),
    groups: contexts.map((context) => context.world),
    async [Symbol.asyncDispose]() {
      await Promise.all(contexts.map((context) => context.close()));
    },
  };
}

export function tensor(device: Device, values: ArrayLike<number>, shape: Shape, dtype: DType = "float32"): Tensor {
  const x = device.empty(shape, dtype);
  device.write(x, values);
  return x;
}
