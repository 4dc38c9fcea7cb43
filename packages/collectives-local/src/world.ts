import type { Context } from "@mosaic/core";
import { NativeGroup, NativeRank, openWorld, timeoutOf, type Together, type WorldOptions } from "@mosaic/runtime";
import { LocalEngine } from "./engine.ts";
import { native, type Segment } from "./native.ts";
import { checkWorld, streamOf } from "./options.ts";

/**
 * Many ranks in this process, all driven by this thread: no rank ever blocks the host, so one may post for rank 0, then
 * for rank 1, and so on. What tests, notebooks and debuggers run on.
 *
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { filled } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const contexts = await world(3, { device: () => cpu({ threads: 1 }) });
 * const shares = contexts.map((ctx) => filled(ctx, [2], ctx.rank + 1));
 * contexts.forEach((ctx, rank) => ctx.world.allReduce(shares[rank]!).wait());
 * Array.from(await shares[2]!.read()); // => [6, 6]
 * await Promise.all(contexts.map((ctx) => ctx.close()));
 * ```
 */
export async function world(size: number, options: WorldOptions): Promise<readonly Context[]> {
  checkWorld({ rank: 0, size });
  return openWorld(size, together(size), options);
}

/** Collectives over memory of this process: rank r of the world is whoever connects as r. */
function together(size: number): Together {
  let segment: Segment | undefined;
  return {
    name: "local",
    check: streamOf,
    async connect(options) {
      checkWorld(options);
      const { device, rank, timeout } = options;
      const stream = streamOf(device);
      const seconds = timeoutOf(timeout);
      const member = native((addon) => {
        segment ??= addon.openSegment(size);
        return addon.joinSegment(segment, rank, stream, seconds);
      });
      return NativeGroup.world(new NativeRank(device, new LocalEngine(member)), { rank, size });
    },
  };
}
