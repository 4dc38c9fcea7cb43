import { world } from "@mosaic/collectives-local";
import type { MakeWorld } from "@mosaic/conformance";
import { cpu } from "@mosaic/kernels-cpu";

/** Ranks of one thread each, all in this process. A message that never comes is an error soon. */
export const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
  world(size, { ...options, device: (rank) => wrapDevice(cpu({ threads: 1, index: rank })), timeout: 20 });
