import { fromArray, type Tensor } from "@mosaic/core";
import type { Attending } from "../attend/attending.ts";
import { rowsOf, zerosLike } from "../attend/views.ts";
import type { Chunk } from "../chunks.ts";
import { LOWEST, limitTo } from "../logarithms.ts";
import { reduceInto } from "../reduce.ts";
import type { Chosen } from "../route/choose.ts";
import { Holder } from "../holder.ts";
import { rootOf } from "./key-statistics.ts";

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
export function leftOut(
  attending: Attending,
  chosen: Chosen,
  { known, query }: { known: KnownKeys; query: number },
): Tensor {
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
