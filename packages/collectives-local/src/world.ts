import { type Collectives, type Context, type Device, init, type InitOptions } from "@mosaic/core";
import { LocalGroup } from "./group.ts";
import { native, type Segment } from "./native.ts";
import { checkWorld, streamOf, timeoutOf } from "./options.ts";
import { Rank } from "./rank.ts";

export interface WorldOptions extends Omit<InitOptions, "device" | "collectives" | "rank" | "worldSize"> {
  /** Makes the device of each rank; its context closes it. */
  readonly device: (rank: number) => Device;
}

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
export async function world(size: number, { device, ...rest }: WorldOptions): Promise<readonly Context[]> {
  checkWorld({ rank: 0, size });
  const collectives = together(size);
  const devices = openDevices(size, device);
  const opening = devices.map((each, rank) => init({ ...rest, device: each, collectives, rank, worldSize: size }));
  const outcomes = await Promise.allSettled(opening);
  const failed = outcomes.find((outcome) => outcome.status === "rejected");
  if (!failed) return Promise.all(opening);
  for (const [rank, outcome] of outcomes.entries()) {
    if (outcome.status === "fulfilled") await outcome.value.close();
    else devices[rank]![Symbol.dispose]();
  }
  throw failed.reason;
}

/** All or none: a rank that cannot begin must not leave the others waiting for it. */
function openDevices(size: number, open: (rank: number) => Device): Device[] {
  const devices: Device[] = [];
  try {
    for (let rank = 0; rank < size; rank++) {
      devices.push(open(rank));
      streamOf(devices[rank]!);
    }
    return devices;
  } catch (error) {
    for (const device of devices) device[Symbol.dispose]();
    throw error;
  }
}

/** Collectives over memory of this process: rank r of the world is whoever connects as r. */
function together(size: number): Collectives {
  let segment: Segment | undefined;
  return {
    name: "local",
    async connect(options) {
      checkWorld(options);
      const { device, rank, timeout } = options;
      const stream = streamOf(device);
      const seconds = timeoutOf(timeout);
      const member = native((addon) => {
        segment ??= addon.openSegment(size);
        return addon.joinSegment(segment, rank, stream, seconds);
      });
      const ranks = Array.from({ length: size }, (_, i) => i);
      return new LocalGroup(new Rank(device, member), { name: "world", index: 0, rank, ranks });
    },
  };
}
