import { fromArray, type Tensor } from "@mosaic/core";
import type { Attending } from "../attend/attending.ts";
import type { Chunk } from "../chunks.ts";
import { reduceInto } from "../reduce.ts";
import type { Chosen } from "../route/choose.ts";
import { LOWEST, limitTo } from "../logarithms.ts";
import { type KnownKeys, leftOut } from "./bounds.ts";

/** How much may have been missed. */
export interface Certificate {
  /** For each query row and head, an upper bound on the share of full attention's softmax that was not looked at: [B,S,H]. */
  readonly missedMass: Tensor;
}

/** The bound for every row, from what is known of the keys that were not looked at. */
export function certify(attending: Attending, chosen: Chosen, known: KnownKeys): Certificate {
  const { plan, q } = attending;
  const [batch, numHeads, rows] = q.shape as [number, number, number];
  const missedMass = q.device.empty([batch, rows, numHeads], "float32");
  for (const [query, chunk] of plan.chunks.own.entries()) {
    using shares = leftOut(attending, chosen, { known, query });
    using place = missedMass.slice(1, chunk.offset, chunk.offset + chunk.length);
    using turned = place.permute([0, 2, 1]);
    using column = turned.view({ shape: [...turned.shape, 1], strides: [...turned.strides, 1] });
    using least = leastBound(attending, chosen, chunk);
    writeShare(column, shares, least);
  }
  return { missedMass };
}

/** [B,1,1,1]: what float32 cannot tell from 0 is not 0, unless nothing was left out. */
function leastBound({ plan, q }: Attending, chosen: Chosen, { index }: Chunk): Tensor {
  const all = plan.chunks.reach.count(index);
  const least = chosen.map((ofBatch) => (ofBatch[index]!.length < all ? 2 ** -126 : 0));
  return fromArray(q.device, least, [chosen.length, 1, 1, 1]);
}

/** Where the sigmoid is 1 in float32, by far. */
const ALL = 128;

/** out ← sigmoid(ln Σ e^share) over the last axis, a little more, at least `least` and at most 1. */
function writeShare(out: Tensor, shares: Tensor, least: Tensor): void {
  const { kernels } = shares.device;
  limitTo(shares, -ALL);
  using most = shares.device.empty(shares.shape.with(-1, 1), "float32");
  using sum = shares.device.empty(most.shape, "float32");
  reduceInto("max", most, shares);
  kernels.scalar("max", most, most, LOWEST);
  kernels.binary("sub", shares, shares, most);
  kernels.unary("exp", shares, shares);
  reduceInto("sum", sum, shares);
  kernels.unary("log", sum, sum);
  kernels.binary("add", sum, sum, most);
  kernels.unary("sigmoid", sum, sum);
  kernels.binary("max", sum, sum, least);
  kernels.scalar("mul", sum, sum, 1 + 2 ** -20);
  limitTo(sum, -1);
  kernels.copy(out, sum);
}

/** [B,perRank,N]: for each of this rank's chunks the largest `leftOut` over its rows and heads; −Infinity where there is no chunk. */
export function worstLeftOut(attending: Attending, chosen: Chosen, known: KnownKeys): Tensor {
  const { plan, q } = attending;
  const batch = q.shape[0]!;
  const count = plan.chunks.all.length;
  const worst = q.device.empty([batch, plan.chunks.perRank, count], "float32");
  if (plan.chunks.own.length < plan.chunks.perRank) q.device.kernels.fill(worst, -Infinity);
  for (const query of plan.chunks.own.keys()) {
    using shares = leftOut(attending, chosen, { known, query });
    using row = worst.slice(1, query, query + 1);
    using place = row.view({ shape: [batch, 1, 1, count], strides: [row.strides[0]!, 1, 1, 1] });
    reduceInto("max", place, shares);
  }
  return worst;
}
