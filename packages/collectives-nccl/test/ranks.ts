import type { Context, Device, DType, ProcessGroup, Shape, Tensor } from "@mosaic/core";
import { cuda } from "@mosaic/kernels-cuda";
import { type NcclWorldOptions, world } from "../src/index.ts";
import { emulate } from "./emulated.ts";

// Always emulated, because NCCL accepts only one rank of a process per GPU, and there may be only one GPU.
emulate();

/** Ranks in one process, on emulated GPUs. */
export interface Ranks extends AsyncDisposable {
  readonly contexts: readonly Context[];
  readonly groups: readonly ProcessGroup[];
  readonly devices: readonly Device[];
}

export async function openRanks(size: number, options: Omit<NcclWorldOptions, "device"> = {}): Promise<Ranks> {
  const contexts = await world(size, { timeout: 20, ...options, device: () => cuda({ index: 0 }) });
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
