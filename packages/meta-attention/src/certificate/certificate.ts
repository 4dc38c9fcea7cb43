import { fromArray, type Tensor } from "@mosaic/core";
import type { Attending } from "../attend/attending.ts";
import { rowsOf, zerosLike } from "../attend/views.ts";
import type { Chunk } from "../chunks.ts";
import { Holder } from "../holder.ts";
import { limitTo, LOWEST } from "../logarithms.ts";
import { reduceInto } from "../reduce.ts";
import type { Chosen } from "../route/choose.ts";
import { rootOf } from "./key-statistics.ts";

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

/** [B,1,1,1]: what float32 cannot distinguish from 0 is not 0, unless nothing was left out. */
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

/** What is known of the keys of all chunks: the gathered [N,B,W], in which the statistics begin at `start`. */
export interface KnownKeys {
  readonly gathered: Tensor;
  readonly start: number;
}

// B batch, H heads in Hkv groups of G, each with a key head; L rows of a query chunk, D head size, N chunks.

/**
 * For each row of a query chunk, each head and each chunk j that it did not look at though it might have: a bound on the
 * logarithm of (softmax mass on j : mass looked at), u_j − l in docs/algorithms.md. [B,H,L,N]; −Infinity for all other chunks, and Infinity
 * where a row saw nothing that it looked at.
 */
function leftOut(attending: Attending, chosen: Chosen, { known, query }: { known: KnownKeys; query: number }): Tensor {
  const { plan, q, combined } = attending;
  const { kernels } = q.device;
  const chunk = plan.chunks.own[query]!;
  using holder = new Holder();
  const hold = <T extends Disposable>(thing: T): T => holder.hold(thing);
  const count = plan.chunks.all.length;
  const [batch, size] = [q.shape[0]!, plan.headDim];
  const groups = [batch, plan.numKvHeads, plan.numHeads / plan.numKvHeads, chunk.length];
  const rows = hold(hold(rowsOf(q, chunk)).reshape([...groups, size]));
  const lse = hold(hold(rowsOf(combined.lse, chunk)).reshape([...groups, 1]));
  const { centres, radii } = keysOf(known, plan, holder);
  const empty = (...shape: number[]): Tensor => hold(q.device.empty(shape, "float32"));

  // τ·(q·μ + ‖q‖·reach), reach = r + slack·(‖μ‖ + r)
  const bound = empty(...groups, count);
  kernels.matmul(bound, rows, centres, false);
  // Where it overflows a bound may be larger; −∞ + ∞ would be NaN.
  kernels.scalar("max", bound, bound, LOWEST);
  const norms = empty(...groups);
  kernels.rowDot(norms, rows, rows);
  rootOf(norms, size);
  const reach = reachOf({ centres, radii }, (size + 16) * 2 ** -22, holder);
  const most = empty(...groups, count);
  kernels.binary("mul", most, hold(norms.reshape([...groups, 1])), reach);
  kernels.binary("add", bound, bound, most);
  kernels.scalar("mul", bound, bound, plan.scale);

  // + ln n_j − l + 2⁻²⁰·(1 + |l|), where j was left out
  kernels.binary("add", bound, bound, hold(lengthsOf(attending)));
  kernels.binary("sub", bound, bound, lse);
  kernels.binary("add", bound, bound, hold(roundingOf(lse)));
  limitTo(bound, hold(negativeLimits(attending, chosen, chunk)));
  return bound.reshape([batch, plan.numHeads, chunk.length, count]);
}

/** Centres [B,Hkv,1,D,N] and radii [B,Hkv,1,1,N], views of what was gathered. */
function keysOf(
  { gathered, start }: KnownKeys,
  { numKvHeads, headDim: size }: Attending["plan"],
  holder: Holder,
): { centres: Tensor; radii: Tensor } {
  const [count, batch] = gathered.shape as [number, number];
  const [whole, row] = gathered.strides as [number, number];
  const offset = gathered.offset + start;
  const centres = { shape: [batch, numKvHeads, 1, size, count], strides: [row, size, 0, 1, whole], offset };
  const radii = {
    shape: [batch, numKvHeads, 1, 1, count],
    strides: [row, 1, 0, 0, whole],
    offset: offset + numKvHeads * size,
  };
  return { centres: holder.hold(gathered.view(centres)), radii: holder.hold(gathered.view(radii)) };
}

/** r + slack·(‖μ‖ + r), [B,Hkv,1,1,N]. */
function reachOf({ centres, radii }: { centres: Tensor; radii: Tensor }, slack: number, holder: Holder): Tensor {
  const { device, shape } = centres;
  const reach = holder.hold(device.empty(radii.shape, "float32"));
  const squares = holder.hold(device.empty(shape, "float32"));
  device.kernels.binary("mul", squares, centres, centres);
  reduceInto("sum", reach, squares);
  rootOf(reach, shape[3]!);
  device.kernels.binary("add", reach, reach, radii);
  device.kernels.scalar("mul", reach, reach, slack);
  device.kernels.binary("add", reach, reach, radii);
  return reach;
}

/** [1,1,1,1,N]: ln n_j. */
function lengthsOf({ plan, q }: Attending): Tensor {
  const values = plan.chunks.all.map(({ length }) => Math.log(length) + 2 ** -20);
  return fromArray(q.device, values, [1, 1, 1, 1, values.length]);
}

/** [B,1,1,1,N]: minus what the bound is at most; −Infinity, no limit, where chunk j might have been looked at and was not. */
function negativeLimits({ plan, q }: Attending, chosen: Chosen, query: Chunk): Tensor {
  const { all, reach } = plan.chunks;
  const values = chosen.flatMap((ofBatch) =>
    all.map(({ index }) => {
      const isLeftOut = reach.may(query.index, index) && !ofBatch[query.index]!.includes(index);
      return isLeftOut ? -Infinity : Infinity;
    }),
  );
  return fromArray(q.device, values, [chosen.length, 1, 1, 1, all.length]);
}

/** 2⁻²⁰·(1 + |l|). */
function roundingOf(lse: Tensor): Tensor {
  const { kernels } = lse.device;
  const result = zerosLike(lse);
  kernels.scalar("mul", result, lse, -1);
  kernels.binary("max", result, result, lse);
  kernels.scalar("add", result, result, 1);
  kernels.scalar("mul", result, result, 2 ** -20);
  return result;
}
