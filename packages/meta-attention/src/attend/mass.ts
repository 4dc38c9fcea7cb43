import type { Tensor } from "@mosaic/core";
import { reduceInto } from "../reduce.ts";
import type { Attending, Looked } from "./attending.ts";
import { shareOf } from "../logarithms.ts";
import { pairOf, rowsOf, zerosLike } from "./views.ts";

/** The share of the softmax over everything looked at that lies on the chunk of a look, for each of its rows [b,H,S]. */
export function massOf({ combined, plan }: Attending, { query, b0, b1, before, after, state }: Looked): Tensor {
  using lse = rowsOf(combined.lse, plan.chunks.own[query]!, b0, b1);
  if (state) return shareOf(state.lse, lse);
  const mass = shareOf(after!, lse);
  using rest = shareOf(before!, lse);
  lse.device.kernels.binary("sub", mass, mass, rest);
  return mass;
}

/** How the softmax of each of this rank's chunks is spread over chunks, [B,c,N] each; 0 where it did not look. */
export interface AttentionMass {
  /** Mean over heads and rows. */
  readonly mean: Tensor;
  /** The largest of any head and row. */
  readonly peak: Tensor;
}

/** Where attention fell, from what was computed anyway: the lse of each part beside that of the whole. */
export function attentionMass(attending: Attending): AttentionMass {
  const { own, combined, plan, q } = attending;
  const { kernels } = q.device;
  const { chunks } = plan;
  const batch = q.shape[0]!;
  using shape = q.device.empty([batch, chunks.own.length, chunks.all.length], "float32");
  const result = { mean: zerosLike(shape), peak: zerosLike(shape) };
  const put = (mass: Tensor, at: { b0: number; b1: number; i: number; j: number }): void => {
    using mean = pairOf(result.mean, at, 3);
    using peak = pairOf(result.peak, at, 3);
    reduceInto("sum", mean, mass);
    kernels.scalar("mul", mean, mean, 1 / (mass.shape[1]! * mass.shape[2]!));
    reduceInto("max", peak, mass);
  };
  using shares = shareOf(own.lse, combined.lse);
  for (const [i, chunk] of chunks.own.entries()) {
    using rows = rowsOf(shares, chunk);
    put(rows, { b0: 0, b1: batch, i, j: chunk.index });
  }
  for (const look of attending.looked) {
    using mass = massOf(attending, look);
    put(mass, { b0: look.b0, b1: look.b1, i: look.query, j: look.chunk.index });
  }
  return result;
}
