import { type Context, type Device, OptionError } from "@mosaic/core";
import {
  checkDeviceType,
  connectRank,
  type ControlPlane,
  inProcessControl,
  type InProcessCollectives,
  openWorld,
  type WorldOptions,
} from "@mosaic/runtime";
import { openTransport } from "./addon.ts";

/** Ranks of one thread that are closed one after the other would otherwise wait for one another. */
const drainSeconds = 5;

/**
 * Many ranks in this process, all driven by this thread: no rank ever blocks the host, so one may post for rank 0, then
 * for rank 1, and so on. What tests, notebooks and debuggers run on. No socket, no other process.
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
 * @throws OptionError for a size that cannot be, or a device of another type than "cpu".
 */
export async function world(size: number, options: WorldOptions): Promise<readonly Context[]> {
  checkSize(size);
  return openWorld(size, inProcess(size), options);
}

/** Collectives over memory of this process: rank r of the world is whichever connects as r. */
export function inProcess(size: number): InProcessCollectives {
  let control: ControlPlane | undefined;
  return {
    name: "local",
    check: checkDevice,
    connect(connecting) {
      checkDevice(connecting.device);
      control ??= inProcessControl(size, connecting.timeout);
      return connectRank({ ...connecting, openTransport, control, drainSeconds });
    },
  };
}

/** Rings of bytes grow with the square of the ranks. */
export function checkSize(size: number): void {
  if (size <= 1024) return;
  throw new OptionError({ where: "local collectives", expected: "at most 1024 ranks", received: String(size) });
}

export function checkDevice(device: Device): void {
  checkDeviceType(device, "cpu", "local collectives");
}
