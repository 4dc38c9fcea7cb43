import type { MakeWorld } from "@mosaic/conformance";
import type { Context, Device, DType, ProcessGroup, Shape, Tensor } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { type UcxOptions, type UcxWorldOptions, world } from "../src/index.ts";

/** Worlds of one process, for the suites. */
export function makeWorld(ucx: UcxOptions): MakeWorld {
  return (size, { wrapDevice, ...options }) =>
    world(size, { ...options, ucx, device: () => wrapDevice(cpu({ threads: 1 })) });
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
