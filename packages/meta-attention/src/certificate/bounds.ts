import { fromArray, type Tensor } from "@mosaic/core";
import type { Attending } from "../attend/attending.ts";
import { rowsOf, zerosLike } from "../attend/views.ts";
import type { Chunk } from "../chunks.ts";
import { reduceInto } from "../reduce.ts";
import { FORBIDDEN, isAllowed } from "../route/allowed.ts";
import type { Chosen } from "../route/choose.ts";
import { Scope } from "../scope.ts";

/** What is known of the keys of all chunks: the gathered [N,B,W], in which the statistics begin at `start`. */
export interface KnownKeys {
  readonly gathered: Tensor;
  readonly start: number;
  readonly causal: boolean;
}

/**
 * For each row of a query chunk, each head and each chunk j that it did not look at though it might have: a bound on the
 * logarithm of (softmax mass on j : mass looked at), u_j − l in docs/algorithms.md. [B,H,S,N]; −1e9 for all other chunks.
 */
export function leftOut(
  attending: Attending,
  chosen: Chosen,
  { known, query }: { known: KnownKeys; query: number },
): Tensor {
  const { plan, q, combined } = attending;
  const { kernels } = q.device;
  const chunk = plan.chunks.own[query]!;
  using scope = new Scope();
  const hold = <T extends Disposable>(thing: T): T => scope.hold(thing);
  const rows = hold(rowsOf(q, chunk));
  const lse = hold(rowsOf(combined.lse, chunk));
  const { centres, radii } = keysOf(known, plan, scope);
  const [batch, heads, length, size] = rows.shape as [number, number, number, number];
  const count = plan.chunks.all.length;
  const empty = (...shape: number[]): Tensor => q.device.empty(shape, "float32");

  // τ·(q·μ + ‖q‖·reach), reach = r + slack·(‖μ‖ + r)
  const bound = empty(batch, heads, length, count);
  kernels.matmul(bound, rows, centres, false);
  const norms = hold(empty(batch, heads, length));
  kernels.rowDot(norms, rows, rows);
  kernels.unary("sqrt", norms, norms);
  const reach = reachOf({ centres, radii }, (size + 16) * 2 ** -22, scope);
  const most = hold(empty(batch, heads, length, count));
  kernels.binary("mul", most, hold(norms.reshape([batch, heads, length, 1])), reach);
  kernels.binary("add", bound, bound, most);
  kernels.scalar("mul", bound, bound, plan.scale);

  // ln n_j where j was left out; − l + 2⁻²⁰·(1 + |l|)
  kernels.binary("add", bound, bound, hold(lengthsWhere(attending, chosen, { chunk, causal: known.causal })));
  const column = hold(lse.reshape([batch, heads, length, 1]));
  kernels.binary("sub", bound, bound, column);
  kernels.binary("add", bound, bound, hold(roundingOf(column)));
  return bound;
}

/** Centres [B,H,D,N] and radii [B,H,1,N], views of what was gathered. */
function keysOf(
  { gathered, start }: KnownKeys,
  { heads, headSize: size }: Attending["plan"],
  scope: Scope,
): { centres: Tensor; radii: Tensor } {
  const [count, batch] = gathered.shape as [number, number];
  const [whole, row] = gathered.strides as [number, number];
  const offset = gathered.offset + start;
  return {
    centres: scope.hold(gathered.view({ shape: [batch, heads, size, count], strides: [row, size, 1, whole], offset })),
    radii: scope.hold(
      gathered.view({
        shape: [batch, heads, 1, count],
        strides: [row, 1, 1, whole],
        offset: offset + heads * size,
      }),
    ),
  };
}

/** r + slack·(‖μ‖ + r), [B,H,1,N]. */
function reachOf({ centres, radii }: { centres: Tensor; radii: Tensor }, slack: number, scope: Scope): Tensor {
  const { device, shape } = centres;
  const reach = scope.hold(device.empty(radii.shape, "float32"));
  const squares = scope.hold(device.empty(shape, "float32"));
  device.kernels.binary("mul", squares, centres, centres);
  reduceInto("sum", reach, squares);
  device.kernels.unary("sqrt", reach, reach);
  device.kernels.binary("add", reach, reach, radii);
  device.kernels.scalar("mul", reach, reach, slack);
  device.kernels.binary("add", reach, reach, radii);
  return reach;
}

/** [B,1,1,N]: ln n_j where chunk j might have been looked at and was not, −1e9 elsewhere. */
function lengthsWhere(
  { plan, q }: Attending,
  chosen: Chosen,
  { chunk, causal }: { chunk: Chunk; causal: boolean },
): Tensor {
  const { all } = plan.chunks;
  const values = chosen.flatMap((ofBatch) =>
    all.map(({ index, length }) => {
      const out = isAllowed(chunk.index, index, causal) && !ofBatch[chunk.index]!.includes(index);
      return out ? Math.log(length) + 2 ** -20 : FORBIDDEN;
    }),
  );
  return fromArray(q.device, values, [chosen.length, 1, 1, all.length]);
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
