import type { AttentionModifiers, Coordinate, DType, Placement, Slice } from "@mosaic/core";
import { check, magnitude } from "../check.ts";
import {
  attentionOracle,
  attentionOracleBackward,
  type AttentionProblem,
  type OracleBackward,
  type OracleForward,
  type MaskMod,
  smallestTopScoreGap,
} from "../oracle/attention.ts";
import { normals, roundTo } from "../oracle/numbers.ts";

/** A change to values that were normal numbers: scores become as large as float32 holds, −Infinity or denormal. */
export interface ValueTransform {
  readonly name: string;
  /**
   * Whether scores are so far apart that no rounding changes which is the largest of a row: that key takes all, and results
   * are as exact as those of ordinary scores, although an lse of 1e9 is rounded by 32.
   */
  readonly hasSeparatedScores: boolean;
  transform(problem: AttentionProblem, dtype: DType): Pick<AttentionProblem, "q" | "k">;
}

/** Queries, and so scores, so many times as large. */
function createScoreScaling(size: number, hasSeparatedScores: boolean): ValueTransform {
  return {
    name: `scores of ${size}`,
    hasSeparatedScores,
    transform: ({ q, k }, dtype) => ({ q: q.map((x) => roundTo(x * size, dtype)), k }),
  };
}

/** Every other key is one that no query takes notice of. */
const minusInfinityScores: ValueTransform = {
  name: "scores of −Infinity",
  hasSeparatedScores: false,
  transform({ q, k, headDim }) {
    const isFirstColumn = (i: number) => i % headDim === 0;
    return {
      q: q.map((x, i) => (isFirstColumn(i) ? 1 : x)),
      k: k.map((x, i) => (isFirstColumn(i) && Math.floor(i / headDim) % 2 === 0 ? Number.NEGATIVE_INFINITY : x)),
    };
  },
};

const denormal: ValueTransform = {
  name: "denormal scores",
  hasSeparatedScores: false,
  transform({ q, k }, dtype) {
    const scaleDown = (x: number) => roundTo(x * 1e-20, dtype);
    return { q: q.map(scaleDown), k: k.map(scaleDown) };
  },
};

/** What a backend must be as exact on as on normal numbers. */
export const extremeValueTransforms: readonly ValueTransform[] = [
  createScoreScaling(1e4, false),
  createScoreScaling(1e9, true),
  createScoreScaling(1e20, true),
  createScoreScaling(1e37, true),
  minusInfinityScores,
  denormal,
];

/** Attention over whole sequences that a group of ranks computes, and the reference result. */
export interface Trial {
  readonly name: string;
  /** Lengths of the mesh's axes, and the axes that the sequences are cut along. */
  readonly mesh: Coordinate;
  readonly axes: readonly string[];
  readonly batch: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly dtype: DType;
  readonly scale: number;
  /** The mask passed to the backend, and the visible pairs that are expected. */
  readonly mask: readonly Slice[];
  /** Sample masks, if these see different keys. */
  readonly modifiers?: AttentionModifiers;
  readonly maskMod: MaskMod;
  readonly queries: { readonly length: number; readonly placement: Placement };
  readonly keys: { readonly length: number; readonly placement: Placement };
  /** Seed of all values. */
  readonly seed: number;
  /** What becomes of the queries and keys; they stay normal numbers if absent. */
  readonly values?: ValueTransform;
}

/** The whole tensors of a trial, rounded to its dtype, and float64's answer. */
export interface Reference extends OracleForward, OracleBackward {
  readonly problem: AttentionProblem;
  readonly dOut: Float64Array;
}

const referenceCache = new WeakMap<MaskMod, Map<string, Reference>>();

/**
 * Computed once for all ranks, placements and meshes: float64's answer depends on the values and on what sees what, not on
 * who holds which rows.
 */
export function getReference(trial: Trial): Reference {
  const { batch, numHeads, numKvHeads, headDim, dtype, scale, seed, maskMod, queries, keys, values } = trial;
  const sizes = [batch, numHeads, numKvHeads, headDim, scale, seed, queries.length, keys.length];
  const problemKey = [...sizes, dtype, values?.name].join();
  const referencesByProblem = referenceCache.get(maskMod) ?? new Map<string, Reference>();
  referenceCache.set(maskMod, referencesByProblem);
  const reference = referencesByProblem.get(problemKey) ?? computeReference(trial);
  referencesByProblem.set(problemKey, reference);
  return reference;
}

function computeReference(trial: Trial): Reference {
  const { batch, numHeads, numKvHeads, headDim, dtype, scale, seed, maskMod } = trial;
  const queries = trial.queries.length;
  const keys = trial.keys.length;
  const queryElements = batch * numHeads * queries * headDim;
  const keyElements = batch * numKvHeads * keys * headDim;
  const normalProblem: AttentionProblem = {
    batch,
    numHeads,
    numKvHeads,
    queries,
    keys,
    headDim,
    scale,
    maskMod,
    q: normals(queryElements, 4 * seed, dtype),
    k: normals(keyElements, 4 * seed + 1, dtype),
    v: normals(keyElements, 4 * seed + 2, dtype),
  };
  const { values } = trial;
  const problem = values ? { ...normalProblem, ...values.transform(normalProblem, dtype) } : normalProblem;
  const minGap = 1e-5 * magnitude(problem.q);
  const gap = values?.hasSeparatedScores ? smallestTopScoreGap(problem) : Number.POSITIVE_INFINITY;
  check(
    gap > minGap,
    `${trial.name}: expected the two largest scores to differ by more than ${minGap}, received ${gap}`,
  );
  const dOut = normals(queryElements, 4 * seed + 3, dtype);
  return { problem, dOut, ...attentionOracle(problem), ...attentionOracleBackward(problem, dOut) };
}
