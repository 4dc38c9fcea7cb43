import type { ProcessGroup, Traffic } from "@mosaic/core";

/**
 * Returns the sum of two counts, such as those of a forward and a backward pass.
 *
 * @example
 * ```ts
 * import { addTraffic } from "@mosaic/conformance";
 * const forward = { bytesSent: 8, bytesReceived: 4, messagesSent: 1 };
 * addTraffic(forward, forward); // => { bytesSent: 16, bytesReceived: 8, messagesSent: 2 }
 * ```
 */
export function addTraffic(a: Traffic, b: Traffic): Traffic {
  return {
    bytesSent: a.bytesSent + b.bytesSent,
    bytesReceived: a.bytesReceived + b.bytesReceived,
    messagesSent: a.messagesSent + b.messagesSent,
  };
}

function subtractTraffic(a: Traffic, b: Traffic): Traffic {
  return {
    bytesSent: a.bytesSent - b.bytesSent,
    bytesReceived: a.bytesReceived - b.bytesReceived,
    messagesSent: a.messagesSent - b.messagesSent,
  };
}

/**
 * Runs a function and returns what this rank sent and received meanwhile in each of the groups. Backends compare it
 * with their closed forms.
 *
 * @example
 * ```ts
 * import { measureTraffic } from "@mosaic/conformance";
 * import { init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const [traffic] = await measureTraffic([ctx.world], async () => ctx.world.barrier());
 * traffic; // => { bytesSent: 0, bytesReceived: 0, messagesSent: 0 }
 * ```
 */
export async function measureTraffic(groups: readonly ProcessGroup[], run: () => Promise<unknown>): Promise<Traffic[]> {
  const trafficBefore = groups.map((group) => group.traffic());
  await run();
  return groups.map((group, i) => subtractTraffic(group.traffic(), trafficBefore[i]!));
}
