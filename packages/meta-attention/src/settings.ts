import {
  checkOptionNames,
  type Context,
  type DType,
  dtypeBytes,
  type Mask,
  masks,
  OptionError,
  type Placement,
  type PlacementName,
  placementOf,
  type PositionEncoding,
} from "@mosaic/core";
import type { Combine } from "./attend/plan.ts";
import { ranksAlong } from "./chunks.ts";

/** What HierarchicalMetaAttention takes. */
export interface HierarchicalMetaAttentionOptions {
  /** E, the length of the last axis. */
  readonly embedDim: number;
  /** H, the query heads. */
  readonly numHeads: number;
  /** Key heads; a divisor of numHeads, default numHeads. Fewer is grouped-query attention (Ainslie et al. 2023). */
  readonly numKvHeads?: number;
  /** D, from 1 to 256. Default embedDim / numHeads. */
  readonly headDim?: number;
  /** Length of a chunk's summary. Default 64. */
  readonly summaryDim?: number;
  /** Heads of the attention over summaries; a divisor of summaryDim. Default 4. */
  readonly metaHeads?: number;
  /** Learned queries of the summaries; a divisor of embedDim. Default numHeads, or 1 if that is none. */
  readonly summaryHeads?: number;
  /** Chunks that each chunk looks at beside itself: 0 to chunks − 1, or "all". Default 2, or as many as there are. */
  readonly topK?: number | "all";
  /** Chunks on each rank. Default 1. */
  readonly chunksPerRank?: number;
  /**
   * "soft": attention over each chosen chunk by itself, weighted by the routing. "exact": one softmax over own and chosen
   * chunks; with all chosen and no gate that is full attention. Default "soft".
   */
  readonly combine?: Combine;
  /** Short for mask: causal(). */
  readonly causal?: boolean;
  /**
   * Which keys each query sees, in global positions. Default: all. A chunk is never routed to one of which it would see
   * nothing. Under a mask that shows no query a later key chunks are routed by what was before them, and so must stand one
   * after another; under any other, routing uses the whole of every chunk.
   */
  readonly mask?: Mask;
  /**
   * How the sequence is cut into shards. Default "contiguous". A shard's rows are cut into its chunks in their order; zigzag's
   * two stretches each into half of an even `chunksPerRank`. "striped" chunks are samples of the whole sequence: legal, but
   * not under a causal mask.
   */
  readonly placement?: PlacementName | Placement;
  /** Turns queries and keys by their global positions; `RotaryEmbedding` of @mosaic/nn. Default: nothing does. */
  readonly positions?: PositionEncoding;
  /** Of the input and the projections. The router's parameters are float32 whatever this is. Default "float32". */
  readonly dtype?: DType;
  /** Whether a learned gate mixes the result with attention over the own chunk alone. Default true; "soft" needs it. */
  readonly gate?: boolean;
  /** Keep only the input, fetch and compute the rest again in the backward. Default false. */
  readonly useCheckpoint?: boolean;
  /** Whether `meta` bounds what was missed; costs Hkv·(D + 1) numbers a chunk in the gather. Default true. */
  readonly certificate?: boolean;
  /**
   * ε, more than 0 and less than 1: look at more chunks until no row can have missed more than this share of its softmax. If
   * causal, which chunks are added depends on all queries of a chunk: for inference.
   */
  readonly maxMissedMass?: number;
  /** Standard deviation of normal noise on the scores while training. Default 0. */
  readonly routingNoise?: number;
  /** Steps of training over which topK comes down from all chunks. Default 0. */
  readonly warmupSteps?: number;
  /** The mesh axis along which the sequence is cut. Default "sp". */
  readonly axis?: string;
  /** Factor on q·k. Default 1 / √headDim. */
  readonly scale?: number;
  /** Whether the projections have biases. Default true. */
  readonly bias?: boolean;
  /** Tokens of the whole sequence over all ranks. Default: local rows times ranks; needed if shards are unequal. */
  readonly sequenceLength?: number;
}

/** Options checked, with their defaults. */
export interface ResolvedOptions extends Readonly<Required<Omit<HierarchicalMetaAttentionOptions, Resolved>>> {
  readonly name: string;
  readonly topK: number;
  /** Chunks of the whole sequence, if no shard is too short for its own. */
  readonly chunks: number;
  readonly headDim: number;
  readonly placement: Placement;
  readonly positions: PositionEncoding | undefined;
  readonly maxMissedMass: number | undefined;
  readonly sequenceLength: number | undefined;
}
/** Options that have another form once they are resolved. */
type Resolved = "topK" | "headDim" | "causal" | "placement" | "positions" | "maxMissedMass" | "sequenceLength";

const legal = [
  "embedDim",
  "numHeads",
  "numKvHeads",
  "headDim",
  "summaryDim",
  "metaHeads",
  "summaryHeads",
  "topK",
  "chunksPerRank",
  "combine",
  "causal",
  "mask",
  "placement",
  "positions",
  "dtype",
  "gate",
  "useCheckpoint",
  "certificate",
  "maxMissedMass",
  "routingNoise",
  "warmupSteps",
  "axis",
  "scale",
  "bias",
  "sequenceLength",
] as const satisfies readonly (keyof HierarchicalMetaAttentionOptions)[];

/** Checks options against each other and the mesh, and fills in defaults. */
export function resolveOptions(name: string, ctx: Context, options: HierarchicalMetaAttentionOptions): ResolvedOptions {
  ctx.assertOpen(name);
  checkOptionNames(name, options, legal);
  const { embedDim, numHeads, numKvHeads = numHeads, summaryDim = 64, metaHeads = 4 } = options;
  checkCounts(name, { embedDim, numHeads, numKvHeads, summaryDim, metaHeads });
  if (options.headDim === undefined) checkHeads(name, ["numHeads", "embedDim"], numHeads, embedDim);
  else checkCounts(name, { headDim: options.headDim });
  const { summaryHeads = embedDim % numHeads === 0 ? numHeads : 1, chunksPerRank = 1 } = options;
  checkCounts(name, { summaryHeads, chunksPerRank });
  checkHeads(name, ["numKvHeads", "numHeads"], numKvHeads, numHeads);
  checkHeads(name, ["metaHeads", "summaryDim"], metaHeads, summaryDim);
  checkHeads(name, ["summaryHeads", "embedDim"], summaryHeads, embedDim);
  if (options.sequenceLength !== undefined) checkCounts(name, { sequenceLength: options.sequenceLength });
  const { axis = "sp", routingNoise = 0, warmupSteps = 0, maxMissedMass, scale } = options;
  const chunks = ranksAlong(name, ctx, axis) * chunksPerRank;
  const { headDim = embedDim / numHeads } = options;
  checkMask(name, options);
  const settings: ResolvedOptions = {
    name,
    embedDim,
    numHeads,
    numKvHeads,
    headDim,
    summaryDim,
    metaHeads,
    summaryHeads,
    chunksPerRank,
    chunks,
    topK: topKOf(name, options.topK, chunks),
    combine: options.combine ?? "soft",
    mask: options.mask ?? (options.causal ? masks.causal() : masks.full()),
    placement: placementOf(options.placement ?? "contiguous"),
    positions: options.positions,
    dtype: options.dtype ?? "float32",
    gate: options.gate ?? true,
    useCheckpoint: options.useCheckpoint ?? false,
    certificate: options.certificate ?? true,
    maxMissedMass,
    routingNoise,
    warmupSteps,
    axis,
    scale: scale ?? headDim ** -0.5,
    bias: options.bias ?? true,
    sequenceLength: options.sequenceLength,
  };
  checkTogether(settings);
  return settings;
}

/** A number of chunks to choose, checked against how many there are. */
function topKOf(where: string, topK: number | "all" | undefined, chunks: number): number {
  if (topK === undefined) return Math.min(2, chunks - 1);
  if (topK === "all") return chunks - 1;
  if (Number.isSafeInteger(topK) && topK >= 0 && topK < chunks) return topK;
  throw new OptionError({
    where,
    expected: `topK from 0 to ${chunks - 1}, the chunks beside one's own, or "all"`,
    received: String(topK),
    remedy: "choose fewer, or cut the sequence into more chunks with chunksPerRank",
  });
}

function checkMask(where: string, { causal, mask }: HierarchicalMetaAttentionOptions): void {
  if (!causal || !mask) return;
  throw new OptionError({ where, expected: "causal or mask", received: "both", remedy: "put all into the mask" });
}

function checkTogether(settings: ResolvedOptions): void {
  const { name: where, combine, gate, headDim, scale, routingNoise, warmupSteps } = settings;
  const { certificate, maxMissedMass, dtype } = settings;
  const faults: (readonly [fault: boolean, expected: string, received: unknown])[] = [
    [combine !== "soft" && combine !== "exact", 'combine "soft" or "exact"', combine],
    [combine === "soft" && !gate, 'a gate, without which "soft" would forget the own chunk', "gate: false"],
    [headDim > 256, "headDim, or embedDim / numHeads, from 1 to 256", headDim],
    [!Object.hasOwn(dtypeBytes, dtype), `dtype ${Object.keys(dtypeBytes).join(", ")}`, dtype],
    [!(scale > 0 && scale < Infinity), "scale more than 0", scale],
    [!(routingNoise >= 0 && routingNoise < Infinity), "routingNoise, a standard deviation ≥ 0", routingNoise],
    [!Number.isSafeInteger(warmupSteps) || warmupSteps < 0, "warmupSteps a whole number ≥ 0", warmupSteps],
    [
      maxMissedMass !== undefined && !(maxMissedMass > 0 && maxMissedMass < 1),
      "maxMissedMass between 0 and 1",
      maxMissedMass,
    ],
    [maxMissedMass !== undefined && !certificate, "a certificate, which maxMissedMass follows", "certificate: false"],
  ];
  const fault = faults.find(([wrong]) => wrong);
  if (fault) throw new OptionError({ where, expected: fault[1], received: String(fault[2]) });
}

/** Throws an OptionError unless each option is a whole number ≥ 1. */
export function checkCounts(where: string, counts: Readonly<Record<string, number>>): void {
  for (const [name, value] of Object.entries(counts)) {
    if (Number.isSafeInteger(value) && value >= 1) continue;
    throw new OptionError({ where, expected: `${name} a whole number ≥ 1`, received: String(value) });
  }
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
    expected: `${names[0]} a divisor of ${names[1]}`,
    received: `${count} of ${size}`,
  });
}
