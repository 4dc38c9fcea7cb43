import type { Case } from "../case.ts";
import type { MakeWorld } from "../world.ts";
import { gatherCases } from "./gathers.ts";
import { messageCases } from "./messages.ts";
import { orderCases } from "./order.ts";
import { reductionCollectiveCases } from "./reductions.ts";

export interface CollectivesSuiteOptions {
  /** Numbers of ranks to try. Default: 1, 2, 3, 4 and 7. */
  readonly sizes?: readonly number[];
}

/**
 * What every implementation of collectives must do: each operation against its definition, to the last bit, for all
 * dtypes, for equal, uneven and empty shares; the order that is promised between messages, and between collectives and
 * compute; groups within groups; and the traffic it reports.
 *
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { collectivesSuite } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const cases = collectivesSuite((size) => world(size, { device: () => cpu({ threads: 1 }) }), { sizes: [2] });
 * await cases.find(({ name }) => name === "allGather, float32, 2 ranks")!.run();
 * ```
 */
export function collectivesSuite(
  makeWorld: MakeWorld,
  { sizes = [1, 2, 3, 4, 7] }: CollectivesSuiteOptions = {},
): Case[] {
  return sizes.flatMap((size) => [
    ...messageCases(makeWorld, size),
    ...gatherCases(makeWorld, size),
    ...reductionCollectiveCases(makeWorld, size),
    ...orderCases(makeWorld, size),
  ]);
}
