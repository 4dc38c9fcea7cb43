// p ranks with c chunk slots each, N chunks; B batch, M length of a summary, W number of key statistics.
import {
  add,
  type Context,
  defineOp,
  type Device,
  fromArray,
  offsetSeed,
  type ProcessGroup,
  randn,
  softmax,
  type Tensor,
} from "@mosaic/core";
import type { Combine, RoutedAttentionConfig } from "../options.ts";
import { type Chunks, sliceOwnRows } from "../chunks.ts";
import type { ChosenChunks } from "./choose.ts";
import { logSoftmax } from "../log-softmax.ts";
import type { MetaAttention, Routing } from "./meta-attention.ts";

/** Inputs of the gather on one rank. */
interface SummaryInputs {
  /** Summaries of this rank's chunks, at most c: [n,B,M]. */
  readonly summaries: Tensor;
  /** Statistics of their keys [n,B,W]; null unless requested. Has no gradient. */
  readonly keyStatistics: Tensor | null;
  /**
   * Tensors from which the summaries are computed. With these as inputs, a rank without chunks, which computed no
   * summary, also takes part in the backward.
   */
  readonly dependencies: readonly Tensor[];
}

interface GatherContext {
  readonly chunks: Chunks;
  readonly group: ProcessGroup;
  readonly label: string;
}

const gatherOp = defineOp({
  name: "gatherSummaries",
  forward([own, keyStatistics]: readonly (Tensor | null)[], { chunks, group, label }: GatherContext) {
    using packedSlots = packSlots(own!, keyStatistics ?? null, chunks);
    using gatheredSlots = packedSlots.device.empty(
      packedSlots.shape.with(0, group.size * chunks.chunksPerRank),
      packedSlots.dtype,
    );
    if (group.size === 1) packedSlots.device.kernels.copy(gatheredSlots, packedSlots);
    else group.allGather(gatheredSlots, packedSlots, { label }).wait();
    return { output: slotsToChunks(gatheredSlots, chunks), saved: { shape: own!.shape, chunks, group, label } };
  },
  backward({ shape, chunks, group, label }, dOut) {
    const [count, , size] = shape as [number, number, number];
    using summaryGradient = dOut.slice(2, 0, size);
    using slotGradients = chunksToSlots(summaryGradient, chunks);
    using ownSlotGradients = dOut.device.empty(slotGradients.shape.with(0, chunks.chunksPerRank), dOut.dtype);
    if (group.size === 1) dOut.device.kernels.copy(ownSlotGradients, slotGradients);
    else group.reduceScatter(ownSlotGradients, slotGradients, "sum", { label }).wait();
    return [ownSlotGradients.slice(0, 0, count)];
  },
});

/** Concatenates summaries and statistics, [c,B,M+W]. Slots without a chunk are zeros, because they are also sent. */
function packSlots(summaries: Tensor, keyStatistics: Tensor | null, { chunksPerRank }: Chunks): Tensor {
  const { device, dtype } = summaries;
  const [count, batch, size] = summaries.shape as [number, number, number];
  const packedSlots = device.empty([chunksPerRank, batch, size + (keyStatistics?.shape[2] ?? 0)], dtype);
  if (count < chunksPerRank) device.kernels.fill(packedSlots, 0);
  if (count === 0) return packedSlots;
  using usedSlots = packedSlots.slice(0, 0, count);
  using summarySlots = usedSlots.slice(2, 0, size);
  using statisticSlots = usedSlots.slice(2, size);
  device.kernels.copy(summarySlots, summaries);
  if (keyStatistics) device.kernels.copy(statisticSlots, keyStatistics);
  return packedSlots;
}

/**
 * Gathers the summaries of all chunks, and their statistics, to [N,B,M+W], in the order of the sequence. One
 * all-gather; the backward is a reduce-scatter of the summaries' gradient.
 */
function gatherSummaries(
  { summaries, keyStatistics, dependencies }: SummaryInputs,
  gatherContext: GatherContext,
): Tensor {
  return gatherOp([summaries, keyStatistics, ...dependencies], gatherContext);
}

/**
 * Normal noise on the scores, specific to a module and a step, and separate from the random numbers of parameters and
 * ranks.
 */
export interface NoiseSpec {
  readonly std: number;
  readonly stream: number;
  readonly step: number;
}

/** The routing of each chunk, the same on every rank, and the gathered summaries and statistics [N,B,M+W]. */
export interface GatheredRouting {
  readonly routing: Routing;
  readonly gatheredFeatures: Tensor;
}

/** Gathers summaries, and computes the routing from them. */
export function gatherAndRoute(
  metaAttention: MetaAttention,
  inputs: SummaryInputs,
  { plan, noise }: { plan: RoutedAttentionConfig; noise: NoiseSpec | null },
): GatheredRouting {
  const { ctx, group, label, chunks } = plan;
  const gatheredFeatures = gatherSummaries(inputs, { chunks, group, label });
  using summaries = gatheredFeatures.slice(2, 0, inputs.summaries.shape[2]);
  using summariesByBatch = summaries.permute([1, 0, 2]);
  const { visibility } = chunks;
  if (!noise) return { routing: metaAttention.forward(summariesByBatch, { visibility }), gatheredFeatures };
  using routingNoise = drawNoise(ctx, noise, [summariesByBatch.shape[0]!, visibility.chunks, visibility.chunks]);
  return { routing: metaAttention.forward(summariesByBatch, { visibility, noise: routingNoise }), gatheredFeatures };
}

/** Draws noise that is the same on every rank. */
function drawNoise(ctx: Context, { std, stream, step }: NoiseSpec, shape: readonly number[]): Tensor {
  const seed = offsetSeed(ctx.seed, Math.imul(stream + 1, 0x85ebca6b));
  return randn(ctx, shape, { std, seed, stream: step });
}

/**
 * Returns the router's input to the attention, [B,c,N]: weights of the chosen chunks if soft, logarithms of the routing
 * distribution if exact.
 */
export function combineWeights(
  ctx: Context,
  { scores }: Routing,
  { combine, chosen, chunks }: { combine: Combine; chosen: ChosenChunks; chunks: Chunks },
): Tensor {
  using ownScores = sliceOwnRows(scores, chunks);
  if (combine === "exact") {
    using pairMask = visibilityMask(ctx, chunks);
    return logSoftmax(ownScores, pairMask);
  }
  using mask = chosenChunksMask(ctx, chosen, chunks);
  using maskedScores = add(ownScores, mask);
  return softmax(maskedScores);
}

// Masks that are added to the scores [B,c,N] of this rank's chunks: 0 for selected pairs of chunks, −Infinity for
// others.

/** Returns [1,c,N], which selects the chunks that each may attend to. */
export function visibilityMask(contextOrDevice: Context | Device, { own, all, visibility }: Chunks): Tensor {
  const values = own.flatMap(({ index }) =>
    all.map((chunk) => (visibility.canAttend(index, chunk.index) ? 0 : -Infinity)),
  );
  return fromArray(contextOrDevice, values, [1, own.length, all.length]);
}

/** Returns [B,c,N], which selects the chunks that each chose. */
export function chosenChunksMask(
  contextOrDevice: Context | Device,
  chosen: ChosenChunks,
  { own, all }: Chunks,
): Tensor {
  const values = chosen.flatMap((chunksByQuery) =>
    own.flatMap(({ index }) => all.map((chunk) => (chunksByQuery[index]!.includes(chunk.index) ? 0 : -Infinity))),
  );
  return fromArray(contextOrDevice, values, [chosen.length, own.length, all.length]);
}

// All ranks contribute the same number of slots to the gather, p·c in total. Each rank fills its first slots. Chunks
// are in the order of the sequence, and are fewer than slots if shards are short.

/** Returns whether the slots are equal to the chunks, in the same order. */
function isOrdered({ all, ranks, chunksPerRank }: Chunks): boolean {
  return all.length === ranks * chunksPerRank && all.every(({ index, slot }) => index === slot);
}

/** Reorders slots [p·c,B,W] to chunks [N,B,W]. */
function slotsToChunks(slotRows: Tensor, chunks: Chunks): Tensor {
  if (isOrdered(chunks)) return slotRows.detach();
  const [, batch, width] = slotRows.shape as [number, number, number];
  const chunkRows = slotRows.device.empty([chunks.all.length, batch, width], slotRows.dtype);
  using source = flattenBatch(slotRows);
  using destination = flattenBatch(chunkRows);
  using index = slotIndices(chunks, slotRows);
  slotRows.device.kernels.gatherRows(destination, source, index);
  return chunkRows;
}

/** The inverse of `slotsToChunks`: chunks [N,B,W] → slots [p·c,B,W], float32, 0 in slots without a chunk. */
function chunksToSlots(chunkRows: Tensor, chunks: Chunks): Tensor {
  const contiguousChunks = chunkRows.contiguous();
  if (isOrdered(chunks)) return contiguousChunks;
  using rows = contiguousChunks;
  const [, batch, width] = rows.shape as [number, number, number];
  const slotSums = rows.device.empty([chunks.ranks * chunks.chunksPerRank, batch, width], "float32");
  rows.device.kernels.fill(slotSums, 0);
  using source = flattenBatch(rows);
  using destination = flattenBatch(slotSums);
  using index = slotIndices(chunks, slotSums);
  rows.device.kernels.scatterAddRows(destination, source, index);
  return slotSums;
}

/** Returns [n,B,W] as [n,B·W]. */
function flattenBatch(x: Tensor): Tensor {
  const [count, batch, width] = x.shape as [number, number, number];
  return x.reshape([count, batch * width]);
}

/** Returns the slot of each chunk. */
function slotIndices({ all }: Chunks, { device }: Tensor): Tensor {
  const slots = all.map(({ slot }) => slot);
  return fromArray(device, slots, [slots.length]);
}
