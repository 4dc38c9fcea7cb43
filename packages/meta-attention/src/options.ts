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

/** How the attention over the chosen chunks is combined with that over the own chunk. */
export type Combine = "soft" | "exact";

/** Configuration of one forward and its backward. */
export interface RoutedAttentionConfig {
  readonly ctx: Context;
  readonly group: ProcessGroup;
  readonly chunks: Chunks;
  readonly combine: Combine;
  /** Whether to also return the attention over the own chunk. */
  readonly gate: boolean;
  readonly scale: number;
  readonly numHeads: number;
  /** Number of KV heads, a divisor of numHeads. */
  readonly numKvHeads: number;
  readonly headDim: number;
  /** Name of the caller, shown in messages and traces. */
  readonly label: string;
}

export const hierarchicalMetaAttentionOptions = defineOptions("HierarchicalMetaAttention", {
  /** E, the length of the last axis. */
  embedDim: option.integer({ min: 1 }),
  /** H, the number of query heads. */
  numHeads: option.integer({ min: 1 }),
  /**
   * Number of KV heads, a divisor of numHeads. If smaller than numHeads, this is grouped-query attention (Ainslie et
   * al. 2023). Default: numHeads.
   */
  numKvHeads: option.integer({ min: 1, optional: true }),
  /** D, the head size, from 1 to 256. Default: embedDim / numHeads. */
  headDim: option.integer({ min: 1, max: 256, optional: true }),
  /** Length of a chunk's summary. Default 64. */
  summaryDim: option.integer({ min: 1, default: 64 }),
  /** Number of heads of the attention over summaries; a divisor of summaryDim. Default 4. */
  metaHeads: option.integer({ min: 1, default: 4 }),
  /**
   * Number of learned queries of the summaries; a divisor of embedDim. Default: numHeads, or 1 if that is not a
   * divisor.
   */
  summaryHeads: option.integer({ min: 1, optional: true }),
  /**
   * Number of other chunks that each chunk attends to: 0 to chunks − 1, or "all". Default: 2, or all if there are
   * fewer.
   */
  topK: option.either(option.number(), option.oneOf(["all"]), { optional: true }),
  /** Number of chunks on each rank. Default 1. */
  chunksPerRank: option.integer({ min: 1, default: 1 }),
  /**
   * "soft": a separate softmax over each chosen chunk, weighted by the routing. "exact": one softmax over the own and
   * the chosen chunks; with all chunks chosen and no gate, this is full attention. Default "soft".
   */
  combine: option.oneOf(["soft", "exact"], { default: "soft" }),
  /** Shorthand for `mask: masks.causal()`. Default false. */
  causal: option.boolean({ default: false }),
  /**
   * The keys that are visible to each query, in global positions. A chunk is never routed to a chunk of which no key is
   * visible to it. Under a causal mask, in which no query attends to a later key, chunks are routed by the tokens
   * before them and must not interleave. Under any other mask, routing uses all tokens of every chunk. Default: all
   * keys.
   */
  mask: option.mask({ optional: true }),
  /**
   * Placement of the sequence: how it is divided into shards. The rows of a shard are divided into its chunks in order;
   * with "zigzag" and an even `chunksPerRank`, each of its two spans into half of the chunks. "striped" chunks are
   * samples of the whole sequence, which is not allowed under a causal mask. Default "contiguous".
   */
  placement: option.placement({ default: "contiguous" }),
  /**
   * Encodes global positions in queries and keys, such as `RotaryEmbedding` of @mosaic/nn. Default: no position
   * encoding.
   */
  positions: option.custom("a PositionEncoding", option.hasMethods<PositionEncoding>("encode"), { optional: true }),
  /** The dtype of the input and the projections. The router's parameters are always float32. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
  /**
   * Whether a learned gate mixes the result with attention over the own chunk only; required for "soft". Default true.
   */
  gate: option.boolean({ default: true }),
  /** Save only the input, and fetch and recompute the rest in the backward. Default false. */
  useCheckpoint: option.boolean({ default: false }),
  /**
   * Whether `meta` contains a bound on the missed softmax mass. Adds Hkv·(D + 1) numbers per chunk to the gather.
   * Default true.
   */
  certificate: option.boolean({ default: true }),
  /**
   * ε, more than 0 and less than 1: attend to more chunks until no row can have missed more than this share of its
   * softmax. Under a causal mask, the added chunks depend on all queries of a chunk, so use it for inference only.
   * Default: no additional chunks.
   */
  maxMissedMass: option.number({ above: 0, below: 1, optional: true }),
  /** Standard deviation of normal noise on the scores during training. Default 0. */
  routingNoise: option.number({ min: 0, default: 0 }),
  /** Number of training steps over which topK decreases from all chunks. Default 0. */
  warmupSteps: option.integer({ min: 0, default: 0 }),
  /** The mesh axis along which the sequence is sharded. Default "sp". */
  axis: option.string({ default: "sp" }),
  /** Factor on q·k. Default: 1 / √headDim. */
  scale: option.number({ above: 0, optional: true }),
  /** Whether the projections have biases. Default true. */
  bias: option.boolean({ default: true }),
  /** Length of the whole sequence over all ranks. Required if shards are unequal. Default: local rows times ranks. */
  sequenceLength: option.integer({ min: 1, optional: true }),
});
/** Options of HierarchicalMetaAttention. */
export type HierarchicalMetaAttentionOptions = OptionsOf<typeof hierarchicalMetaAttentionOptions>;
type ParsedOptions = ResolvedOptionsOf<typeof hierarchicalMetaAttentionOptions>;

/** Validated options, with all defaults. */
export interface ResolvedOptions extends Omit<ParsedOptions, DerivedOption | "causal"> {
  readonly name: string;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly summaryHeads: number;
  /** Number of chunks of the whole sequence, if no shard is too short for its chunks. */
  readonly chunks: number;
  readonly topK: number;
  readonly mask: Mask;
  readonly placement: Placement;
  readonly scale: number;
}
/** Options whose defaults depend on others, or whose type changes when they are resolved. */
type DerivedOption = "numKvHeads" | "headDim" | "summaryHeads" | "topK" | "mask" | "placement" | "scale";

/** Checks options against each other and the mesh, and fills in the defaults that depend on others. */
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

/** Resolves topK, and checks it against the number of chunks. */
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

/** Throws an OptionError unless `size` is divisible by `count`. */
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
