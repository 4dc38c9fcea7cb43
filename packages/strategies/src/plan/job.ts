import {
  type AttentionBackend,
  checkOptionNames,
  type Coordinate,
  type DType,
  type Mask,
  masks,
  OptionError,
  type Placement,
  type PlacementName,
  placementOf,
} from "@mosaic/core";
import { maxRanks, parseProfile, type Profile, profiles } from "@mosaic/planner";

/** A machine whose profile the planner has. */
export type ProfileName = keyof typeof profiles;

/** One way to attend, to be compared with others. */
export interface Candidate {
  /** Any backend: it is recorded and timed as it is. */
  readonly backend: AttentionBackend;
  /** What tables call it; its own name if absent. */
  readonly name?: string;
  /**
   * The mesh that it runs on. If absent, what its `meshFor` returns, if it has one; of one axis, all ranks; of two, nodes and
   * the ranks of a node.
   */
  readonly mesh?: Coordinate;
  /** An expression that makes it, for the code to paste, and the lines that import what that needs. */
  readonly code?: string;
  readonly imports?: readonly string[];
}

const ofCandidates = ["backend", "name", "mesh", "code", "imports"] as const satisfies readonly (keyof Candidate)[];

/** Throws an OptionError if a candidate has options that no candidate can have. */
export function checkCandidate(where: string, candidate: Candidate): void {
  checkOptionNames(where, candidate, ofCandidates);
}

/** What is to be computed, and on what. */
export interface PlanOptions {
  /** Length of the sequence of queries, and of keys: as many if absent. */
  readonly tokens: number;
  readonly keyTokens?: number;
  /** Query heads; key heads, as many if absent; size of a head. */
  readonly numHeads: number;
  readonly numKvHeads?: number;
  readonly headDim: number;
  /** Sequences that the ranks work on together; 1 if absent. */
  readonly batch?: number;
  /** "bfloat16" if absent. */
  readonly dtype?: DType;
  /** All keys if absent. */
  readonly mask?: Mask;
  /** "zigzag" if the mask is causal, else "contiguous", if absent. */
  readonly placement?: PlacementName | Placement;
  /** Nodes, 1 if absent, and ranks on each: rank = node · gpusPerNode + place in the node. At most 65 536 ranks. */
  readonly nodes?: number;
  readonly gpusPerNode: number;
  /** What the ranks compute on, which selects the profile if none is given; "cpu" if absent, as in `init`. */
  readonly device?: "cpu" | "cuda";
  /**
   * The machine: measured by `calibrate`, or a name; if absent "cpu-local", or "h100-ib400" on CUDA. Ranks that plan on their
   * own must be given the same one: measure on one and broadcast it.
   */
  readonly profile?: Profile | ProfileName;
  /** Bytes that a rank may hold at once, inputs, results and gradients of this attention included. */
  readonly memoryLimit?: number;
  /** If given, only strategies that run on this very mesh. */
  readonly mesh?: Coordinate;
  /** More ways to attend, beside those that are built in. */
  readonly candidates?: readonly Candidate[];
  /** How many of the best are simulated whole; if absent, as many as take some seconds, at least one; one of over 1 024 ranks. */
  readonly simulate?: number;
  /** Whether the simulations keep who did what when, to be drawn; false if absent. */
  readonly pieces?: boolean;
  /** Called with how far the planning is. */
  readonly onProgress?: (progress: PlanProgress) => void;
}

/** How far the planning is: so many of the candidates are sketched, or simulated. */
export interface PlanProgress {
  readonly stage: "sketch" | "simulate";
  readonly done: number;
  readonly of: number;
}

const legal = [
  "tokens",
  "keyTokens",
  "numHeads",
  "numKvHeads",
  "headDim",
  "batch",
  "dtype",
  "mask",
  "placement",
  "nodes",
  "gpusPerNode",
  "device",
  "profile",
  "memoryLimit",
  "mesh",
  "candidates",
  "simulate",
  "pieces",
  "onProgress",
] as const satisfies readonly (keyof PlanOptions)[];

/** What is to be computed, as the planner records it: all but backend and mesh. */
export interface CallShape {
  readonly tokens: number;
  readonly keyTokens: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly batch: number;
  readonly dtype: DType;
  readonly mask: Mask;
  readonly placement: Placement;
}

/** Options checked, with their defaults. */
export interface PlanJob {
  readonly shape: CallShape;
  readonly nodes: number;
  readonly gpusPerNode: number;
  readonly ranks: number;
  /** With the nodes of the job, whatever it was measured on. */
  readonly profile: Profile;
  readonly memoryLimit: number;
}

/** Checks options and fills in what is absent; throws an OptionError that names `where`. */
export function jobOf(where: string, options: PlanOptions): PlanJob {
  checkOptionNames(where, options, legal);
  const { tokens, numHeads, headDim, nodes = 1, gpusPerNode, mask = masks.full() } = options;
  const { keyTokens = tokens, numKvHeads = numHeads, batch = 1, dtype = "bfloat16" } = options;
  const counts = { tokens, keyTokens, numHeads, numKvHeads, headDim, batch, nodes, gpusPerNode };
  for (const [name, value] of Object.entries(counts)) checkCount(where, name, value);
  checkRanks(where, nodes, gpusPerNode);
  if (options.simulate !== undefined) checkCount(where, "simulate", options.simulate);
  if (numHeads % numKvHeads !== 0) {
    throw new OptionError({
      where,
      expected: "numKvHeads a divisor of numHeads",
      received: `${numKvHeads} of ${numHeads}`,
    });
  }
  const { memoryLimit = Number.POSITIVE_INFINITY } = options;
  if (!(memoryLimit > 0)) {
    throw new OptionError({ where, expected: "memoryLimit a number of bytes > 0", received: String(memoryLimit) });
  }
  const placement = placementOf(options.placement ?? (mask.name === masks.causal().name ? "zigzag" : "contiguous"));
  return {
    shape: { tokens, keyTokens, numHeads, numKvHeads, headDim, batch, dtype, mask, placement },
    nodes,
    gpusPerNode,
    ranks: nodes * gpusPerNode,
    profile: { ...profileOf(where, options.profile ?? usual(where, options.device)), ranksPerNode: gpusPerNode },
    memoryLimit,
  };
}

function checkCount(where: string, name: string, value: number): void {
  if (Number.isSafeInteger(value) && value >= 1) return;
  throw new OptionError({ where, expected: `${name} a whole number ≥ 1`, received: String(value) });
}

/** Plans beyond this would take hours, and more memory than there is. */
function checkRanks(where: string, nodes: number, gpusPerNode: number): void {
  if (nodes * gpusPerNode <= maxRanks) return;
  const most = Math.floor(maxRanks / gpusPerNode);
  throw new OptionError({
    where,
    expected: `at most ${maxRanks} ranks${most > 0 ? `, ${most} nodes of ${gpusPerNode}` : ""}`,
    received: `${nodes} nodes of ${gpusPerNode}`,
    remedy: "plan for the ranks that share one sequence, and put the others on an axis of their own, dp",
  });
}

function usual(where: string, device: string = "cpu"): ProfileName {
  if (device === "cpu") return "cpu-local";
  if (device === "cuda") return "h100-ib400";
  throw new OptionError({
    where,
    expected: `device "cpu" or "cuda", or a profile`,
    received: JSON.stringify(device),
    remedy: "measure this device with calibrate()",
  });
}

/** The profile itself, checked, or the one of that name; throws an OptionError that lists the names. */
export function profileOf(where: string, nameOrValue: Profile | string): Profile {
  if (typeof nameOrValue !== "string") return parseProfile(nameOrValue);
  if (Object.hasOwn(profiles, nameOrValue)) return profiles[nameOrValue as ProfileName];
  throw new OptionError({
    where: `${where}: profile`,
    expected: `${Object.keys(profiles).join(", ")}, or a profile`,
    received: JSON.stringify(nameOrValue),
    remedy: "measure this machine with calibrate()",
  });
}
