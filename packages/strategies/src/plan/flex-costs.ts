import type { DispatchCost, StageCost } from "@mosaic/backend-flex";
import { defineOptions, dtypeBytes, option, type OptionsOf, type ResolvedOptionsOf } from "@mosaic/core";
import type { AttentionSpeed, Link, Profile } from "@mosaic/planner";
import {
  checkHeadCounts,
  checkSpeeds,
  EXPECTED_PROFILE,
  headCountRange,
  isProfileLike,
  positiveRange,
  resolveProfile,
} from "./job.ts";

export const flexCostOptions = defineOptions("flexCost", {
  /** Profile of the machine, measured by `calibrate`, or its name. It must be equal on all ranks. */
  profile: option.custom(EXPECTED_PROFILE, isProfileLike),
  /** Number of ranks that share a sequence. If a node of the profile has as many, their links are those within it. */
  ranks: option.integer(positiveRange),
  /** Number of query heads. */
  numHeads: option.integer(headCountRange),
  /** Number of KV heads. Default: numHeads. */
  numKvHeads: option.integer({ ...headCountRange, optional: true }),
  /** Size of a head. */
  headDim: option.integer(positiveRange),
  /** Data type of queries, keys and values. Default "bfloat16". */
  dtype: option.dtype({ default: "bfloat16" }),
});
/** Options of `stageCost` and `dispatchCost`: a machine, and the attention to compute on it. */
export type FlexCostOptions = OptionsOf<typeof flexCostOptions>;

/** Floating-point operations per visible pair and element of a head: two products forward, five backward. */
const PAIR_FLOPS = { attend: 4, attendBackward: 10 } as const;

/**
 * Returns the cost model by which `flex` chooses stages on a machine, for its option `cost`. Cores that ranks share are
 * divided among them; the tax of communication is not included.
 *
 * @throws OptionError for invalid options, an unknown profile, or a dtype for which the profile has no speeds.
 *
 * @example
 * ```ts
 * import { stageCost } from "@mosaic/strategies/plan";
 * const cost = stageCost({ profile: "cpu-local", ranks: 4, numHeads: 8, headDim: 64 });
 * cost.latency; // => 0.00005
 * ```
 */
export function stageCost(options: FlexCostOptions): StageCost {
  const { profile, link, coreShare, headDim, dtype } = resolveOptions("stageCost", options);
  const { kernels, links, enqueue } = profile;
  const [forward, backward] = [kernels.attend[dtype]!, kernels.attendBackward[dtype]!];
  return {
    latency: link.latency,
    bandwidth: bandwidthPerDirection(link, profile),
    localLatency: links["intra-node"].latency,
    localBandwidth: bandwidthPerDirection(links["intra-node"], profile),
    launch: kernels.launch,
    enqueue,
    flops: coreShare * flopsOfHead(forward, headDim),
    backwardFlops: coreShare * flopsOfHead(backward, headDim),
    halfSpeedKeys: forward.halfSpeedKeys,
    backwardHalfSpeedKeys: backward.halfSpeedKeys,
    interleaved: ((forward.interleaved ?? 1) + (backward.interleaved ?? 1)) / 2,
    memoryBandwidth: coreShare * kernels.bandwidth,
  };
}

/**
 * Returns the cost model by which `dispatch` compares placements on a machine, for its option `cost`. If the
 * ranks are on several nodes, a row that is sent between nodes counts once for each node. Cores that ranks share are
 * divided among them; the tax of communication is not included.
 *
 * @throws OptionError for invalid options, an unknown profile, or a dtype for which the profile has no speeds.
 *
 * @example
 * ```ts
 * import { dispatchCost } from "@mosaic/strategies/plan";
 * const problem = { ranks: 64, numHeads: 64, numKvHeads: 8, headDim: 128 };
 * const [h100, cpu] = [dispatchCost({ ...problem, profile: "h100-ib400" }), dispatchCost({ ...problem, profile: "cpu-local" })];
 * h100.pair! < cpu.pair!; // => true
 * ```
 */
export function dispatchCost(options: FlexCostOptions): DispatchCost {
  const { profile, link, coreShare, numHeads, numKvHeads, headDim, dtype } = resolveOptions("dispatchCost", options);
  const pairSeconds = (pass: keyof typeof PAIR_FLOPS): number =>
    (PAIR_FLOPS[pass] * numHeads * headDim) / (coreShare * flopsOfHead(profile.kernels[pass][dtype]!, headDim));
  const rowSeconds = (bytesPerElement: number): number =>
    (2 * numKvHeads * headDim * bytesPerElement) / bandwidthPerDirection(link, profile);
  const intraNodeLink = profile.links["intra-node"];
  const isOnOneNode = link === intraNodeLink;
  const localRow = bandwidthPerDirection(link, profile) / bandwidthPerDirection(intraNodeLink, profile);
  return {
    pair: pairSeconds("attend"),
    backwardPair: pairSeconds("attendBackward"),
    row: rowSeconds(dtypeBytes[dtype]),
    gradientRow: rowSeconds(dtypeBytes.float32),
    latency: link.latency,
    ...(isOnOneNode ? {} : { ranksPerHost: profile.ranksPerNode, localRow }),
  };
}

interface ResolvedFlexCostOptions extends Omit<ResolvedOptionsOf<typeof flexCostOptions>, "profile"> {
  readonly profile: Profile;
  readonly numKvHeads: number;
  /** The link on which ranks send and receive rows. */
  readonly link: Link;
  /** The speed of a rank while all ranks of its node compute, relative to one rank alone. */
  readonly coreShare: number;
}

function resolveOptions(where: string, options: FlexCostOptions): ResolvedFlexCostOptions {
  const settings = flexCostOptions.parse(options, where);
  const profile = resolveProfile(where, settings.profile);
  checkSpeeds(where, profile, settings.dtype);
  const { ranks, numHeads, numKvHeads = numHeads } = settings;
  checkHeadCounts(where, numHeads, numKvHeads);
  const { cores, links, ranksPerNode } = profile;
  const ranksOfNode = Math.min(ranks, ranksPerNode);
  return {
    ...settings,
    profile,
    numKvHeads,
    link: links[ranks <= ranksPerNode ? "intra-node" : "inter-node"],
    coreShare: cores ? (cores.efficiency ?? 1) * Math.min(1, cores.perNode / ranksOfNode) : 1,
  };
}

/** Returns the bytes per second of a rank in each direction while all ranks of a node send and receive. */
function bandwidthPerDirection({ bandwidth, sharedBy, duplex }: Link, { ranksPerNode }: Profile): number {
  return bandwidth / Math.min(sharedBy, ranksPerNode) / (duplex ? 1 : 2);
}

/** Returns the floating-point operations per second on large tiles of heads of a size. */
function flopsOfHead({ flops, halfSpeedHeadDim }: AttentionSpeed, headDim: number): number {
  return (flops * headDim) / (headDim + halfSpeedHeadDim);
}
