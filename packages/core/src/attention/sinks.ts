import { checkDevice, checkTensor } from "../arguments.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import { formatShape } from "../shape.ts";
import { LOWEST_FLOAT32 } from "../storage.ts";
import type { Tensor } from "../tensor.ts";
import { sumToSize } from "../views.ts";
import type { AttentionState } from "./tile.ts";

// Attention sinks: a logit for each head that every row's softmax counts, and that has no value (StreamingLLM, Xiao et al. 2023; as
// learned logits, gpt-oss, OpenAI 2025). A sink is a key with score `sink` and value 0 that all rows see. Its state is known
// without a kernel, out 0 and lse = sink, so it is merged once, after the last key, wherever the keys lay.

/** Throws unless sinks are [H] for the heads of q, float32 or of q's dtype. */
export function checkSinks(where: string, sinks: Tensor, q: Tensor): void {
  checkTensor(`${where}: sinks`, sinks);
  const heads = q.shape[1]!;
  if (sinks.rank !== 1 || sinks.shape[0] !== heads) {
    throw new ShapeError({
      where: `${where}: sinks`,
      expected: `shape [${heads}], one logit per query head`,
      received: formatShape(sinks.shape),
    });
  }
  checkDevice(`${where}: sinks`, q, sinks);
  if (sinks.dtype === "float32" || sinks.dtype === q.dtype) return;
  throw new DTypeError({
    where: `${where}: sinks`,
    expected: q.dtype === "float32" ? "float32" : `float32 or ${q.dtype}`,
    received: sinks.dtype,
    remedy: "convert with to(dtype)",
  });
}

/** A number of each head [H] for every row, [B,H,S] float32 in memory of its own. */
function broadcastToRows(sinks: Tensor, lse: Tensor): Tensor {
  const rows = lse.device.empty(lse.shape, "float32");
  using sinkColumn = sinks.reshape([1, sinks.size, 1]);
  lse.device.kernels.copy(rows, sinkColumn);
  return rows;
}

/** state ← the state over its keys and the sink of each head, for all of its rows. Not recorded. */
export function mergeSinksUnchecked({ out, lse }: AttentionState, sinks: Tensor): void {
  const { device, shape } = out;
  using zeroVector = device.empty([shape[3]!], "float32");
  device.kernels.fill(zeroVector, 0);
  using zeros = zeroVector.expand(shape);
  using logits = broadcastToRows(sinks, lse);
  device.kernels.merge({ out, lse }, { out: zeros, lse: logits });
}

/**
 * −Σ e^(sink − lse) · delta over the rows of each head, [H] in the sinks' dtype: a sink's value is 0, so that its score's gradient
 * is its weight times −delta. Of this rank's rows alone: the whole gradient is the sum over ranks, as of any replicated parameter.
 */
export function computeSinkGradient(sinks: Tensor, lse: Tensor, delta: Tensor): Tensor {
  const { kernels } = lse.device;
  using clampedLse = lse.device.empty(lse.shape, "float32");
  // Where nothing was seen, −Infinity − −Infinity would be NaN.
  kernels.scalar("max", clampedLse, lse, LOWEST_FLOAT32);
  using weights = broadcastToRows(sinks, lse);
  kernels.binary("sub", weights, weights, clampedLse);
  kernels.unary("exp", weights, weights);
  kernels.binary("mul", weights, weights, delta);
  kernels.scalar("mul", weights, weights, -1);
  using headsLastWeights = weights.permute([0, 2, 1]);
  const sum = sumToSize(headsLastWeights, sinks.shape);
  if (sum.dtype === sinks.dtype) return sum;
  const gradient = sum.to(sinks.dtype);
  sum.dispose();
  return gradient;
}
