import type { Shape, Tensor } from "@mosaic/core";
import type { AttentionMass } from "./attend/mass.ts";
import type { BytesMoved } from "./bytes.ts";
import type { Certificate } from "./certificate/certificate.ts";
import type { Chunks } from "./chunks.ts";
import type { Chosen } from "./route/choose.ts";

// B batch (all axes but the sequence and the embedding), N chunks in the order of the sequence, c of them on this rank,
// S tokens here, H heads.

/** What the router's losses follow from: this rank's rows of the scores, with history; float32. */
export interface RouterRows {
  /** Scores and routing distribution of this rank's chunks [B,c,N]. */
  readonly scores: Tensor;
  readonly routing: Tensor;
  /** Where attention fell, constants. */
  readonly mass: AttentionMass;
  readonly chunks: Chunks;
}

/** What one forward did. Its tensors are yours: dispose it. */
export interface Meta extends Disposable {
  /** Row i: how chunk i's routing was distributed over all chunks, before any were chosen [B,N,N]. No history. */
  readonly routingWeights: Tensor;
  /** Attention between summaries, mean of the meta heads [B,N,N]. */
  readonly chunkAttention: Tensor;
  /** How the attention of this rank's chunks was spread over what they looked at, mean of heads and rows [B,c,N]. */
  readonly attentionMass: Tensor;
  /** Mean of the gate over the features, 0 only the own chunk, 1 only the combination [B,S]; null without a gate. */
  readonly gateValues: Tensor | null;
  /** Which chunks each chunk looked at beside itself, best first: chosen[b][i], of all ranks. */
  readonly chosen: Chosen;
  /** Chunks that the router was to choose at this step, warm-up included. */
  readonly topK: number;
  /** Null unless asked for. */
  readonly certificate: Certificate | null;
  readonly bytesMoved: BytesMoved;
  /** The axes that B stands for: `routingWeights` is [...batchShape,N,N], and `chosen` counts b in row-major order. */
  readonly batchShape: Shape;
  /** What `loadBalanceLoss`, `entropyLoss` and `massLoss` are made of. */
  readonly router: RouterRows;
}

/** A result, and what was done for it; disposing it disposes both. */
export interface MetaResult extends Disposable {
  /** The input's shape. */
  readonly out: Tensor;
  readonly meta: Meta;
}

/** A result that disposes what it holds. */
export function resultOf(out: Tensor, parts: Omit<Meta, typeof Symbol.dispose>): MetaResult {
  const meta: Meta = { ...parts, [Symbol.dispose]: () => disposeMeta(parts) };
  return {
    out,
    meta,
    [Symbol.dispose]() {
      out.dispose();
      meta[Symbol.dispose]();
    },
  };
}

/** Disposes whatever of these is there. */
function disposeMeta(meta: Omit<Meta, typeof Symbol.dispose>): void {
  const { routingWeights, chunkAttention, attentionMass, gateValues, certificate, router } = meta;
  const tensors = [routingWeights, chunkAttention, attentionMass, gateValues, certificate?.missedMass];
  for (const tensor of [...tensors, router.scores, router.routing, router.mass.mean, router.mass.peak])
    tensor?.dispose();
}
