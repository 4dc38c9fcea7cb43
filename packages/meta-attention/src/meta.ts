// B batch (all axes but the sequence and the embedding), N chunks in the order of the sequence, c of them on this rank,
// S tokens on this rank, H heads.
import { checkpoint, keep, type Linear, noGrad, scope, type Shape, type Tensor } from "@mosaic/core";
import { routedBackward } from "./attend/backward.ts";
import { type AttentionMass, type Qkv, RoutedAttention } from "./attend/routed-attention.ts";
import type { BytesMoved } from "./bytes.ts";
import type { Certificate } from "./certificate.ts";
import type { Chunks } from "./chunks.ts";
import type { ChosenChunks } from "./route/choose.ts";
import type { ResolvedOptions } from "./options.ts";
import { chunkRows, pairView } from "./tensor-views.ts";

/** Inputs of the router's losses, float32: this rank's rows of scores and routing, with history. */
export interface RouterOutput {
  /** Scores and routing distribution of this rank's chunks [B,c,N]. */
  readonly scores: Tensor;
  readonly routing: Tensor;
  /** Distribution of the attention. Constant, without history. */
  readonly mass: AttentionMass;
  readonly chunks: Chunks;
}

/** Report on one forward. The caller owns its tensors and disposes it. */
export interface Meta extends Disposable {
  /** Routing distributions over all chunks, before the choice [B,N,N]; row i is that of chunk i. No history. */
  readonly routingWeights: Tensor;
  /** Attention between summaries, mean of the meta heads [B,N,N]. */
  readonly chunkAttention: Tensor;
  /** Distribution of the attention of this rank's chunks over chunks, mean of heads and rows [B,c,N]. */
  readonly attentionMass: Tensor;
  /**
   * Mean of the gate over the features [B,S]: 0 selects only the own chunk, 1 only the combination; null without a
   * gate.
   */
  readonly gateValues: Tensor | null;
  /** The other chunks that each chunk attended to, best first: chosen[b][i], for the chunks of all ranks. */
  readonly chosen: ChosenChunks;
  /** Number of chunks for the router to choose in this step, including the warm-up. */
  readonly topK: number;
  /** Null unless requested. */
  readonly certificate: Certificate | null;
  readonly bytesMoved: BytesMoved;
  /**
   * Lengths of the axes that form B: `routingWeights` is [...batchShape,N,N], and `chosen` counts b in row-major order.
   */
  readonly batchShape: Shape;
  /** Inputs of `loadBalanceLoss`, `entropyLoss` and `massLoss`. */
  readonly router: RouterOutput;
}

/** A result, and the report on its computation. Disposing it disposes both. */
export interface MetaResult extends Disposable {
  /** The output, of the input's shape. */
  readonly out: Tensor;
  readonly meta: Meta;
}

/** Creates a result that disposes its parts. */
export function createResult(out: Tensor, parts: Omit<Meta, typeof Symbol.dispose>): MetaResult {
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

/** Disposes all tensors that are present. */
function disposeMeta(meta: Omit<Meta, typeof Symbol.dispose>): void {
  const { routingWeights, chunkAttention, attentionMass, gateValues, certificate, router } = meta;
  const tensors = [routingWeights, chunkAttention, attentionMass, gateValues, certificate?.missedMass];
  for (const tensor of [...tensors, router.scores, router.routing, router.mass.mean, router.mass.peak])
    tensor?.dispose();
}

/**
 * Records the attention as a differentiable operation on q, k and v and the combine weights [B,c,N]: the chunks'
 * weights if soft, the logarithms of the routing distribution if exact. Takes ownership of `attention`. Returns
 * [B,S,parts·H·D] in the dtype of q.
 */
function recordRoutedAttention(attention: RoutedAttention, { q, k, v }: Qkv, combineWeights: Tensor): Tensor {
  if (attention.config.combine === "soft") applyCombineWeights(attention, combineWeights);
  const output = attention.result();
  const savedWeights = keep(combineWeights.detach());
  return output.record([q, k, v, combineWeights], {
    name: "routedAttention",
    backward: (dOutput) => routedBackward(attention, savedWeights, dOutput),
    free() {
      savedWeights.dispose();
      attention[Symbol.dispose]();
    },
  });
}

/** combined ← Σ w·o over chosen chunks. If none was chosen, it remains the attention over the own chunk. */
function applyCombineWeights(attention: RoutedAttention, weights: Tensor): void {
  const { combinedState, attendedChunks: inputs, config, q } = attention;
  const { kernels } = q.device;
  for (const [query, chunk] of config.chunks.own.entries()) {
    for (const [b0, b1] of attention.batchRuns(true, query)) {
      using rows = chunkRows(combinedState.out, chunk, b0, b1);
      kernels.fill(rows, 0);
    }
  }
  for (const { query, chunk, b0, b1, state } of inputs) {
    using weight = pairView(weights, { b0, b1, i: query, j: chunk.index }, 4);
    using weightedOut = q.device.empty(state!.out.shape, "float32");
    using combinedRows = chunkRows(combinedState.out, config.chunks.own[query]!, b0, b1);
    kernels.binary("mul", weightedOut, state!.out, weight);
    kernels.binary("add", combinedRows, combinedRows, weightedOut);
  }
}

/** The projections before and after the attention. */
export interface Projections extends QkvProjection {
  readonly outProjection: Linear;
  readonly gateProjection: Linear | null;
}

/** The attention, and the inputs from which it was computed. */
interface OutputInputs {
  /** `computeOutput` takes ownership. */
  readonly attention: RoutedAttention;
  readonly x: Tensor;
  readonly qkv: ProjectedQkv;
  /** The router's weights of the chunks in the combination, [B,c,N]. */
  readonly combineWeights: Tensor;
  readonly chosen: ChosenChunks;
}

/** The result [B,S,E], and the mean of the gate over the features [B,S] if there is one. */
interface ProjectedOutput {
  readonly out: Tensor;
  readonly gateValues: Tensor | null;
}

/**
 * Computes the result from the attention. With `useCheckpoint`, the tape keeps x and the chosen chunks, and the
 * backward recomputes everything else.
 */
export function computeOutput(projections: Projections, inputs: OutputInputs): ProjectedOutput {
  const { attention, x, qkv, combineWeights, chosen } = inputs;
  if (!projections.settings.useCheckpoint) return projectOutput(projections, attention, { qkv, combineWeights });
  const { config } = attention;
  let computedOutput: ProjectedOutput | undefined;
  const body = (x: Tensor, combineWeights: Tensor): Tensor => {
    if (!computedOutput) return (computedOutput = projectOutput(projections, attention, { qkv, combineWeights })).out;
    using recomputedQkv = projectQkv(x, projections);
    const recomputedAttention = new RoutedAttention(config, recomputedQkv);
    recomputedAttention.attendChosenChunks(chosen);
    const { out, gateValues } = projectOutput(projections, recomputedAttention, { qkv: recomputedQkv, combineWeights });
    gateValues?.dispose();
    return out;
  };
  const out = checkpoint(body, x, combineWeights);
  return { out, gateValues: computedOutput!.gateValues };
}

/** Projects the packed attention to [B,S,E]. It is [B,S,W] without a gate and [B,S,2·W] with one, W = H·D. */
function projectOutput(
  { gateProjection, outProjection }: Projections,
  attention: RoutedAttention,
  { qkv, combineWeights }: { qkv: Qkv; combineWeights: Tensor },
): ProjectedOutput {
  using packedOutput = recordRoutedAttention(attention, qkv, combineWeights);
  if (!gateProjection) return { out: outProjection.forward(packedOutput), gateValues: null };
  const width = packedOutput.shape[2]! / 2;
  return scope(() => {
    const gate = gateProjection.forward(packedOutput).sigmoid();
    const ownOutput = packedOutput.slice(2, 0, width);
    const combinedOutput = packedOutput.slice(2, width, 2 * width);
    const gatedOutput = ownOutput.add(gate.mul(combinedOutput.sub(ownOutput)));
    // The values of the gate must outlive the body of a checkpoint, which returns only the output.
    return { out: outProjection.forward(gatedOutput), gateValues: keep(noGrad(() => gate.mean(-1))) };
  });
}

/** Queries, keys and values with history, to be disposed together. */
export interface ProjectedQkv extends Qkv, Disposable {}

/** The projection from x to queries, keys and values, with its settings. */
interface QkvProjection {
  readonly qkvProjection: Linear;
  readonly settings: ResolvedOptions;
  readonly chunks: Chunks;
}

/** Projects x [B,S,E] to q [B,H,S,D], k and v [B,Hkv,S,D]. Applies the position encoding, if any, to q and k. */
export function projectQkv(x: Tensor, { qkvProjection, settings, chunks }: QkvProjection): ProjectedQkv {
  const { numHeads, numKvHeads, headDim: size, positions } = settings;
  using qkv = qkvProjection.forward(x);
  const projectHeads = (firstHead: number, count: number): Tensor => splitHeads(qkv, { first: firstHead, count, size });
  const encodePositions = (heads: Tensor): Tensor => {
    if (!positions) return heads;
    using unencodedHeads = heads;
    const encodedHeads = positions.encode(unencodedHeads, chunks.shards[chunks.rank]!, chunks.length);
    if (encodedHeads.strides.at(-1) === 1) return encodedHeads;
    using stridedHeads = encodedHeads;
    return stridedHeads.contiguous();
  };
  const q = encodePositions(projectHeads(0, numHeads));
  const k = encodePositions(projectHeads(numHeads, numKvHeads));
  const v = projectHeads(numHeads + numKvHeads, numKvHeads);
  return { q, k, v, [Symbol.dispose]: () => [q, k, v].forEach((each) => each.dispose()) };
}

/** Returns heads [first, first + count) of the features as a view: [B,S,n·D] → [B,count,S,D]. */
function splitHeads(x: Tensor, { first, count, size }: { first: number; count: number; size: number }): Tensor {
  using featureSlice = x.slice(-1, first * size, (first + count) * size);
  using headFeatures = featureSlice.reshape([x.shape[0]!, x.shape[1]!, count, size]);
  return headFeatures.permute([0, 2, 1, 3]);
}
