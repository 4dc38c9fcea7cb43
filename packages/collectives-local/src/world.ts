import { type Context, type Device, OptionError, formatValue } from "@mosaic/core";
import { checkDeviceType, inProcess, openWorld, type WorldOptions } from "@mosaic/runtime";
import { openTransport } from "./addon.ts";

/**
 * Many ranks in this process, all driven by this thread: no rank ever blocks the host, so one may post for rank 0, then
 * for rank 1, and so on. What tests, notebooks and debuggers run on. No socket, no other process.
 *
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { full } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const contexts = await world(3, { device: () => cpu({ threads: 1 }) });
 * const shares = contexts.map((ctx) => full(ctx, [2], ctx.rank + 1));
 * contexts.forEach((ctx, rank) => ctx.world.allReduce(shares[rank]!).wait());
 * Array.from(await shares[2]!.read()); // => [6, 6]
 * await Promise.all(contexts.map((ctx) => ctx.close()));
 * ```
 * @throws OptionError for a size that cannot be, or a device of another type than "cpu".
 */
export async function world(size: number, options: WorldOptions): Promise<readonly Context[]> {
  checkSize(size);
  const collectives = inProcess({
    ...{ name: "local", size, check: checkDevice },
    rank: (connecting) => {
      checkDevice(connecting.device);
      return { ...connecting, openTransport };
    },
  });
  return openWorld(size, collectives, options);
}

/** Rings of bytes grow with the square of the ranks. */
export function checkSize(size: number): void {
  if (typeof size === "number" && size <= 1024) return;
  throw new OptionError({ where: "local collectives", expected: "at most 1024 ranks", received: formatValue(size) });
}

export function checkDevice(device: Device): void {
  checkDeviceType(device, "cpu", "local collectives");
}
