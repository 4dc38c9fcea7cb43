import {
  type DType,
  type Mask,
  masks,
  OptionError,
  type Placement,
  resolvePlacement,
  defineOptions,
  formatValue,
  option,
  type OptionsOf,
} from "@mosaic/core";
import { maxRanks, parseProfile, type Profile, profiles } from "@mosaic/planner";

/** Name of a machine whose profile the planner has. */
export type ProfileName = keyof typeof profiles;

export const candidateOptions = defineOptions("candidate", {
  /** Any backend; it is recorded and timed unchanged. */
  backend: option.backend(),
  /** Name in tables. Default: its own name. */
  name: option.string({ optional: true }),
  /**
   * Mesh that it runs on. Default: the result of its `meshFor`, if it has one; for one axis, all ranks; for two axes,
   * nodes and the ranks of a node.
   */
  mesh: option.meshShape({ optional: true }),
  /** An expression that creates it, for the code to paste. Default: none. */
  code: option.string({ optional: true }),
  /** The lines that import what `code` needs. Default: none. */
  imports: option.array(option.string(), { optional: true }),
});
/** One way to attend, for comparison with others. */
export type Candidate = OptionsOf<typeof candidateOptions>;

export const positiveRange = { min: 1 } as const;
/** Heads are split in every way that divides them, so a larger number must be a mistake. */
export const headCountRange = { min: 1, max: 65_536 } as const;

function isPositiveNumber(value: unknown): value is number {
  return typeof value === "number" && value > 0;
}

function isCandidateList(value: unknown): value is readonly Candidate[] {
  return Array.isArray(value);
}

export const EXPECTED_PROFILE = "a profile, or the name of a profile";

export const planOptions = defineOptions("plan", {
  /** Length of the query sequence. */
  tokens: option.integer(positiveRange),
  /** Length of the key sequence. Default: tokens. */
  keyTokens: option.integer({ ...positiveRange, optional: true }),
  /** Number of query heads. */
  numHeads: option.integer(headCountRange),
  /** Number of KV heads, a divisor of numHeads. Default: numHeads. */
  numKvHeads: option.integer({ ...headCountRange, optional: true }),
  /** Size of a head. */
  headDim: option.integer(positiveRange),
  /** Whether heads have sinks. Default false. */
  sinks: option.boolean({ default: false }),
  /** Sequences that the ranks work on together. Default 1. */
  batch: option.integer({ ...positiveRange, default: 1 }),
  /** Data type of queries, keys and values. Default "bfloat16". */
  dtype: option.dtype({ default: "bfloat16" }),
  /** Mask: the keys that each query attends to. Default: all. */
  mask: option.mask({ optional: true }),
  /** Placement of the sequence on the ranks. Default: "zigzag" if the mask is causal, else "contiguous". */
  placement: option.placement({ optional: true }),
  /** Number of nodes. A rank's number is node · gpusPerNode + local rank; at most 65 536 ranks. Default 1. */
  nodes: option.integer({ ...positiveRange, default: 1 }),
  /** Number of ranks on each node. */
  gpusPerNode: option.integer(positiveRange),
  /** Device of the ranks, which selects the profile if none is set. Default "cpu". */
  device: option.oneOf(["cpu", "cuda"], {
    expected: '"cpu" or "cuda", or a profile',
    remedy: "measure this device with calibrate()",
    default: "cpu",
  }),
  /**
   * Profile of the machine, measured by `calibrate`, or its name. All ranks that plan must have the same profile;
   * `calibrate` returns the same one on all ranks. Default: "cpu-local", or "h100-ib400" on CUDA.
   */
  profile: option.custom(EXPECTED_PROFILE, isProfileLike, { optional: true }),
  /**
   * Maximum bytes that a rank may hold at once, including inputs, results and gradients of this attention. Default: no
   * limit.
   */
  memoryLimit: option.custom("a number of bytes > 0", isPositiveNumber, { optional: true }),
  /** Considers only strategies that run on this mesh. Default: any mesh. */
  mesh: option.meshShape({ optional: true }),
  /** More ways to attend, in addition to the built-in ones. Default: none. */
  candidates: option.custom("an array of candidates", isCandidateList, { optional: true }),
  /**
   * Number of the best strategies that are simulated on all ranks. Default: as many as take some seconds, at least one;
   * one above 1 024 ranks.
   */
  simulate: option.integer({ ...positiveRange, optional: true }),
  /** Whether the simulations keep their events, for drawing. Default false. */
  keepEvents: option.boolean({ default: false }),
  /** Called with the progress of planning. Default: nothing. */
  onProgress: option.custom("a function", option.isFunction<(progress: PlanProgress) => void>, { optional: true }),
});
/** Options of `plan`. */
export type PlanOptions = OptionsOf<typeof planOptions>;

export function isProfileLike(value: unknown): value is Profile | ProfileName {
  return typeof value === "string" || (typeof value === "object" && value !== null);
}

/** Progress of planning: the number of candidates that are estimated, or simulated. */
export interface PlanProgress {
  readonly stage: "estimate" | "simulate";
  readonly done: number;
  readonly total: number;
}

/** The call to compute, as the planner records it, without backend and mesh. */
export interface CallShape {
  readonly tokens: number;
  readonly keyTokens: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly sinks: boolean;
  readonly batch: number;
  readonly dtype: DType;
  readonly mask: Mask;
  readonly placement: Placement;
}

/** Checked options, with defaults filled in. */
export interface PlanJob {
  readonly shape: CallShape;
  readonly nodes: number;
  readonly gpusPerNode: number;
  readonly ranks: number;
  /** Its `ranksPerNode` is that of the job, not of the measurement. */
  readonly profile: Profile;
  readonly memoryLimit: number;
}

/** Checks options and fills in defaults; throws an OptionError that names `where`. */
export function resolveJob(where: string, options: PlanOptions): PlanJob {
  const settings = planOptions.parse(options, where);
  const { tokens, numHeads, headDim, nodes, gpusPerNode, sinks, mask = masks.full(), batch, dtype } = settings;
  const { keyTokens = tokens, numKvHeads = numHeads, memoryLimit = Number.POSITIVE_INFINITY } = settings;
  checkRanks(where, nodes, gpusPerNode);
  checkHeadCounts(where, numHeads, numKvHeads);
  const placement = resolvePlacement(
    settings.placement ?? (mask.name === masks.causal().name ? "zigzag" : "contiguous"),
  );
  const profile = resolveProfile(where, settings.profile ?? (settings.device === "cpu" ? "cpu-local" : "h100-ib400"));
  checkSpeeds(where, profile, dtype);
  return {
    shape: { tokens, keyTokens, numHeads, numKvHeads, headDim, sinks, batch, dtype, mask, placement },
    nodes,
    gpusPerNode,
    ranks: nodes * gpusPerNode,
    profile: { ...profile, ranksPerNode: gpusPerNode },
    memoryLimit,
  };
}

export function checkHeadCounts(where: string, numHeads: number, numKvHeads: number): void {
  if (numHeads % numKvHeads === 0) return;
  throw new OptionError({
    where,
    expected: "numHeads divisible by numKvHeads",
    received: `${numHeads} and ${numKvHeads}`,
  });
}

/** Rejects plans that would take hours, and more memory than there is. */
function checkRanks(where: string, nodes: number, gpusPerNode: number): void {
  if (nodes * gpusPerNode <= maxRanks) return;
  const maxNodes = Math.floor(maxRanks / gpusPerNode);
  throw new OptionError({
    where,
    expected: `at most ${maxRanks} ranks${maxNodes > 0 ? `, ${maxNodes} nodes of ${gpusPerNode} ranks` : ""}`,
    received: `${nodes} nodes of ${gpusPerNode} ranks`,
    remedy: "plan for the ranks that share one sequence, and put the others on a data-parallel axis, dp",
  });
}

/** Throws an OptionError for a data type for which a profile has no speed of attention. */
export function checkSpeeds(where: string, { name, kernels: { attend, attendBackward } }: Profile, dtype: DType): void {
  const measuredDtypes = (Object.keys(attend) as DType[]).filter((each) => attend[each] && attendBackward[each]);
  if (measuredDtypes.includes(dtype)) return;
  throw new OptionError({
    where: `${where}: dtype`,
    expected: `a data type with speeds in profile ${name}: ${measuredDtypes.join(", ") || "none"}`,
    received: dtype,
    remedy: "choose a different profile, or measure this data type with calibrate()",
  });
}

/** Returns the profile itself, checked, or the one with that name; throws an OptionError that lists the names. */
export function resolveProfile(where: string, nameOrValue: Profile | string): Profile {
  if (typeof nameOrValue !== "string") return parseProfile(nameOrValue);
  if (Object.hasOwn(profiles, nameOrValue)) return profiles[nameOrValue as ProfileName];
  throw new OptionError({
    where: `${where}: profile`,
    expected: `${Object.keys(profiles).join(", ")}, or a profile`,
    received: formatValue(nameOrValue),
    remedy: "measure this machine with calibrate()",
  });
}
