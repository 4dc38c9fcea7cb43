import { checkDevice, checkTensor } from "../arguments.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import { formatShape } from "../shape.ts";
import { LOWEST_FLOAT32 } from "../storage.ts";
import type { Tensor } from "../tensor.ts";
import { sumToSize } from "../views.ts";
import type { AttentionState } from "./tile.ts";

// Attention sinks: one logit per head that every row's softmax includes and that has no value (StreamingLLM, Xiao et
// al. 2023; as learned logits, gpt-oss, OpenAI 2025). A sink is equivalent to a key with score `sink` and value 0 that
// is visible to all rows. Its state is known without a kernel, out 0 and lse = sink, so it is merged once, after the
// last key, regardless of how the keys were distributed.

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

/** Returns the sinks [H] broadcast to all rows: a new float32 tensor [B,H,S]. */
function broadcastToRows(sinks: Tensor, lse: Tensor): Tensor {
  const rows = lse.device.empty(lse.shape, "float32");
  using sinkColumn = sinks.reshape([1, sinks.size, 1]);
  lse.device.kernels.copy(rows, sinkColumn);
  return rows;
}

/**
 * Merges the sinks [H] of the heads into all rows of a state, out [B,H,S,D] and lse [B,H,S], in place. Not recorded by
 * autograd. Checks nothing.
 */
export function mergeSinksUnchecked({ out, lse }: AttentionState, sinks: Tensor): void {
  const { device, shape } = out;
  using zeroVector = device.empty([shape[3]!], "float32");
  device.kernels.fill(zeroVector, 0);
  using zeros = zeroVector.expand(shape);
  using logits = broadcastToRows(sinks, lse);
  device.kernels.merge({ out, lse }, { out: zeros, lse: logits });
}

/**
 * Returns −Σ e^(sink − lse) · delta over the rows of each head, [H] in the sinks' dtype. A sink's value is 0, so the
 * gradient of its score is its weight times −delta. Only this rank's rows are included: the complete gradient is the
 * sum over ranks, as for any replicated parameter.
 */
export function computeSinkGradient(sinks: Tensor, lse: Tensor, delta: Tensor): Tensor {
  const { kernels } = lse.device;
  using clampedLse = lse.device.empty(lse.shape, "float32");
  // In rows without any key, −Infinity − −Infinity would be NaN.
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
