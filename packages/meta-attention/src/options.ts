import {
  type Context,
  type ProcessGroup,
  type Mask,
  masks,
  OptionError,
  type Placement,
  resolvePlacement,
  type PositionEncoding,
  checkContext,
  defineOptions,
  option,
  type OptionsOf,
  type ResolvedOptionsOf,
} from "@mosaic/core";
import { axisSize, type Chunks } from "./chunks.ts";

/** How the attention over chosen chunks is combined with that over the own one. */
export type Combine = "soft" | "exact";

/** What stays the same throughout one forward and its backward. */
export interface RoutedAttentionConfig {
  readonly ctx: Context;
  readonly group: ProcessGroup;
  readonly chunks: Chunks;
  readonly combine: Combine;
  /** Whether to return the attention over the local chunk as well. */
  readonly gate: boolean;
  readonly scale: number;
  readonly numHeads: number;
  /** Key heads; a divisor of heads. */
  readonly numKvHeads: number;
  readonly headDim: number;
  /** Name of the caller, shown in messages and traces. */
  readonly label: string;
}

export const hierarchicalMetaAttentionOptions = defineOptions("HierarchicalMetaAttention", {
  /** E, the length of the last axis. */
  embedDim: option.integer({ min: 1 }),
  /** H, the query heads. */
  numHeads: option.integer({ min: 1 }),
  /** Key heads, a divisor of numHeads; fewer is grouped-query attention (Ainslie et al. 2023). Default: numHeads. */
  numKvHeads: option.integer({ min: 1, optional: true }),
  /** D, from 1 to 256. Default: embedDim / numHeads. */
  headDim: option.integer({ min: 1, max: 256, optional: true }),
  /** Length of a chunk's summary. Default 64. */
  summaryDim: option.integer({ min: 1, default: 64 }),
  /** Heads of the attention over summaries; a divisor of summaryDim. Default 4. */
  metaHeads: option.integer({ min: 1, default: 4 }),
  /** Learned queries of the summaries; a divisor of embedDim. Default: numHeads, or 1 if that is none. */
  summaryHeads: option.integer({ min: 1, optional: true }),
  /** Chunks that each chunk attends to beside itself: 0 to chunks − 1, or "all". Default: 2, or as many as there are. */
  topK: option.either(option.number(), option.oneOf(["all"]), { optional: true }),
  /** Chunks on each rank. Default 1. */
  chunksPerRank: option.integer({ min: 1, default: 1 }),
  /**
   * "soft": attention over each chosen chunk by itself, weighted by the routing. "exact": one softmax over own and chosen
   * chunks; with all chosen and no gate that is full attention. Default "soft".
   */
  combine: option.oneOf(["soft", "exact"], { default: "soft" }),
  /** Short for mask: causal(). Default false. */
  causal: option.boolean({ default: false }),
  /**
   * Which keys each query sees, in global positions. A chunk is never routed to one of which it would see nothing. Under a mask
   * that shows no query a later key chunks are routed by what was before them, and so must stand one after another; under any
   * other, routing uses the whole of every chunk. Default: all keys.
   */
  mask: option.mask({ optional: true }),
  /**
   * How the sequence is cut into shards. A shard's rows are cut into its chunks in their order; zigzag's two stretches each
   * into half of an even `chunksPerRank`. "striped" chunks are samples of the whole sequence: legal, but not under a causal
   * mask. Default "contiguous".
   */
  placement: option.placement({ default: "contiguous" }),
  /** Turns queries and keys by their global positions; `RotaryEmbedding` of @mosaic/nn. Default: nothing does. */
  positions: option.custom("a PositionEncoding", option.hasMethods<PositionEncoding>("encode"), { optional: true }),
  /** Of the input and the projections; the router's parameters are float32 whatever this is. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
  /** Whether a learned gate mixes the result with attention over the own chunk alone; "soft" needs it. Default true. */
  gate: option.boolean({ default: true }),
  /** Keep only the input, fetch and compute the rest again in the backward. Default false. */
  useCheckpoint: option.boolean({ default: false }),
  /** Whether `meta` bounds what was missed; costs Hkv·(D + 1) numbers a chunk in the gather. Default true. */
  certificate: option.boolean({ default: true }),
  /**
   * ε, more than 0 and less than 1: attend to more chunks until no row can have missed more than this share of its softmax. If
   * causal, which chunks are added depends on all queries of a chunk: for inference. Default: no more chunks.
   */
  maxMissedMass: option.number({ above: 0, below: 1, optional: true }),
  /** Standard deviation of normal noise on the scores while training. Default 0. */
  routingNoise: option.number({ min: 0, default: 0 }),
  /** Steps of training over which topK comes down from all chunks. Default 0. */
  warmupSteps: option.integer({ min: 0, default: 0 }),
  /** The mesh axis along which the sequence is cut. Default "sp". */
  axis: option.string({ default: "sp" }),
  /** Factor on q·k. Default: 1 / √headDim. */
  scale: option.number({ above: 0, optional: true }),
  /** Whether the projections have biases. Default true. */
  bias: option.boolean({ default: true }),
  /** Tokens of the whole sequence over all ranks; needed if shards are unequal. Default: local rows times ranks. */
  sequenceLength: option.integer({ min: 1, optional: true }),
});
/** What HierarchicalMetaAttention takes. */
export type HierarchicalMetaAttentionOptions = OptionsOf<typeof hierarchicalMetaAttentionOptions>;
type ParsedOptions = ResolvedOptionsOf<typeof hierarchicalMetaAttentionOptions>;

/** Options checked, with all defaults. */
export interface ResolvedOptions extends Omit<ParsedOptions, DerivedOption | "causal"> {
  readonly name: string;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly summaryHeads: number;
  /** Chunks of the whole sequence, if no shard is too short for its own. */
  readonly chunks: number;
  readonly topK: number;
  readonly mask: Mask;
  readonly placement: Placement;
  readonly scale: number;
}
/** Options whose defaults follow from others, or that have another form once they are resolved. */
type DerivedOption = "numKvHeads" | "headDim" | "summaryHeads" | "topK" | "mask" | "placement" | "scale";

/** Checks options against each other and the mesh, and fills in the defaults that follow from others. */
export function resolveOptions(name: string, ctx: Context, input: HierarchicalMetaAttentionOptions): ResolvedOptions {
  checkContext(name, ctx);
  const { causal, ...options } = hierarchicalMetaAttentionOptions.parse(input, name);
  const { embedDim, numHeads, numKvHeads = numHeads, summaryDim, metaHeads, chunksPerRank } = options;
  if (options.headDim === undefined) checkHeads(name, ["numHeads", "embedDim"], numHeads, embedDim);
  const { summaryHeads = embedDim % numHeads === 0 ? numHeads : 1, headDim = embedDim / numHeads } = options;
  checkHeads(name, ["numKvHeads", "numHeads"], numKvHeads, numHeads);
  checkHeads(name, ["metaHeads", "summaryDim"], metaHeads, summaryDim);
  checkHeads(name, ["summaryHeads", "embedDim"], summaryHeads, embedDim);
  const chunks = axisSize(name, ctx, options.axis) * chunksPerRank;
  if (causal && options.mask) {
    throw new OptionError({
      where: name,
      expected: "either causal or mask",
      received: "both",
      remedy: "combine both in mask",
    });
  }
  const settings: ResolvedOptions = {
    ...options,
    name,
    numKvHeads,
    headDim,
    summaryHeads,
    chunks,
    topK: resolveTopK(name, options.topK, chunks),
    mask: options.mask ?? (causal ? masks.causal() : masks.full()),
    placement: resolvePlacement(options.placement),
    scale: options.scale ?? headDim ** -0.5,
  };
  checkCombination(settings);
  return settings;
}

/** A number of chunks to choose, checked against how many there are. */
function resolveTopK(where: string, topK: number | "all" | undefined, chunks: number): number {
  if (topK === undefined) return Math.min(2, chunks - 1);
  if (topK === "all") return chunks - 1;
  if (Number.isSafeInteger(topK) && topK >= 0 && topK < chunks) return topK;
  throw new OptionError({
    where,
    expected: `topK from 0 to ${chunks - 1}, the number of other chunks, or "all"`,
    received: String(topK),
    remedy: "lower topK, or split the sequence into more chunks with chunksPerRank",
  });
}

function checkCombination(settings: ResolvedOptions): void {
  const { name: where, combine, gate, headDim, certificate, maxMissedMass } = settings;
  const combinationChecks: (readonly [fault: boolean, expected: string, received: unknown])[] = [
    [
      combine === "soft" && !gate,
      `gate: true with combine "soft", which attends to each query's own chunk only through the gate`,
      "gate: false",
    ],
    [headDim > 256, "headDim, or embedDim / numHeads, from 1 to 256", headDim],
    [maxMissedMass !== undefined && !certificate, "certificate: true with maxMissedMass", "certificate: false"],
  ];
  const invalidCombination = combinationChecks.find(([isInvalid]) => isInvalid);
  if (invalidCombination)
    throw new OptionError({ where, expected: invalidCombination[1], received: String(invalidCombination[2]) });
}

/** Throws an OptionError unless `count` heads share `size` evenly. */
export function checkHeads(
  where: string,
  names: readonly [numHeads: string, size: string],
  count: number,
  size: number,
): void {
  if (size % count === 0) return;
  throw new OptionError({
    where,
    expected: `${names[1]} divisible by ${names[0]}`,
    received: `${size} and ${count}`,
  });
}
