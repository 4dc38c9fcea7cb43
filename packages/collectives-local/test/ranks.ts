import type { Context, ProcessGroup } from "@mosaic/core";
import { world, type WorldOptions } from "../src/index.ts";
import { TestDevice } from "./device.ts";

/** Ranks of one process on test devices. */
export interface Ranks extends AsyncDisposable {
  readonly contexts: readonly Context[];
  readonly groups: readonly ProcessGroup[];
  readonly devices: readonly TestDevice[];
}

export async function openRanks(size: number, options: Omit<WorldOptions, "device"> = {}): Promise<Ranks> {
  const devices = Array.from({ length: size }, () => new TestDevice());
  const contexts = await world(size, { timeout: 20, ...options, device: (rank) => devices[rank]! });
  return {
    contexts,
    devices,
    groups: contexts.map((context) => context.world),
    async [Symbol.asyncDispose]() {
      await Promise.all(contexts.map((context) => context.close()));
    },
  };
}
