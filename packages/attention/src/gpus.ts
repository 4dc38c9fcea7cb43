import { type Device, OptionError } from "@mosaic/core";
import { importOptional } from "./optional.ts";

/** This process among those of its host, as the launcher numbers them. */
export interface HostPlace {
  readonly rank: number;
  readonly ranks: number;
}

/** From LOCAL_RANK and LOCAL_WORLD_SIZE; without them, alone. */
export function placeOnHost(env: NodeJS.ProcessEnv = process.env): HostPlace {
  const rank = Number(env["LOCAL_RANK"] || 0);
  return { rank, ranks: Number(env["LOCAL_WORLD_SIZE"] || rank + 1) };
}

/** Whether MOSAIC_SHARE_GPUS lets several ranks use one GPU. */
export function sharesGpus(env: NodeJS.ProcessEnv = process.env): boolean {
  return !["", "0", "false", "no", "off", undefined].includes(env["MOSAIC_SHARE_GPUS"]?.toLowerCase());
}

/**
 * The GPU of a rank: the one of its number on this host, among those that CUDA_VISIBLE_DEVICES leaves; with sharing, ranks are
 * dealt out in turn.
 *
 * @throws OptionError if there are more ranks than GPUs and they may not share.
 */
export function gpuFor({ rank, ranks }: HostPlace, gpus: number, share: boolean): number {
  if (share && gpus > 0) return rank % gpus;
  if (ranks <= gpus) return rank;
  throw new OptionError({
    where: 'init: device "cuda"',
    expected: `a GPU for each of the ${ranks} ranks on this host`,
    received: `${gpus} that can be seen`,
    remedy:
      "start a rank for each GPU (mosaic-run --nproc-per-node gpu), check CUDA_VISIBLE_DEVICES, or let ranks share: MOSAIC_SHARE_GPUS=1",
  });
}

/** This rank's GPU. Throws what `gpuFor` does, an OptionError without the package, and what `cuda()` throws. */
export async function makeCuda(): Promise<Device> {
  const { cuda, cudaSystem } = await importCuda();
  return cuda({ index: gpuFor(placeOnHost(), cudaSystem().gpus.length, sharesGpus()) });
}

type CudaPackage = typeof import("@mosaic/kernels-cuda");

/** @mosaic/kernels-cuda, which need not be installed. */
export function importCuda(): Promise<CudaPackage> {
  return importOptional<CudaPackage>("@mosaic/kernels-cuda", 'init: device "cuda"');
}
