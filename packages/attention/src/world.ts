import { availableParallelism } from "node:os";
import { type WorldOptions as LocalOptions, world as worldOf } from "@mosaic/collectives-local";
import { type Context, type Device, expectValue } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { withDefaults } from "./init.ts";

/** As in @mosaic/collectives-local, but the device has a default. */
export interface WorldOptions extends Omit<LocalOptions, "device"> {
  /** Makes the device of each rank; its context closes it. Default: the CPU, its cores shared out among the ranks. */
  readonly device?: (rank: number) => Device;
}

/**
 * Many ranks in this process, all driven by this thread, with the same defaults as `init`: for tests, notebooks and
 * debuggers. Whoever calls it closes the contexts.
 *
 * @example
 * ```ts
 * import * as mosaic from "@mosaic/attention";
 * const contexts = await mosaic.world(4, { spSize: 2 });
 * contexts.map((ctx) => ctx.mesh.coordinate.sp); // => [0, 1, 0, 1]
 * await Promise.all(contexts.map((ctx) => ctx.close()));
 * ```
 */
export async function world(size: number, options: WorldOptions = {}): Promise<readonly Context[]> {
  expectValue("world", typeof options === "object" && options !== null, "an options object", options);
  const { device = (): Device => cpu({ threads: threadsFor(size) }), backends = [], ...rest } = options;
  expectValue("world: backends", Array.isArray(backends), "an array of backends", backends);
  return worldOf(size, { ...rest, device, backends: withDefaults(backends) });
}

function threadsFor(ranks: number): number {
  return Math.max(1, Math.floor(availableParallelism() / ranks));
}
