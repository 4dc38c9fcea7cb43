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

/**
 * A transform of normally distributed values that makes scores as large as float32 can represent, −Infinity or
 * denormal.
 */
export interface ValueTransform {
  readonly name: string;
  /**
   * Whether scores are so far apart that rounding cannot change which is the largest of a row. That key then has all
   * the weight, and results are as accurate as those of ordinary scores, although an lse of 1e9 has a rounding error of
   * 32.
   */
  readonly hasSeparatedScores: boolean;
  transform(problem: AttentionProblem, dtype: DType): Pick<AttentionProblem, "q" | "k">;
}

/** Returns a transform that multiplies queries, and therefore scores, by `size`. */
function createScoreScaling(size: number, hasSeparatedScores: boolean): ValueTransform {
  return {
    name: `scores of ${size}`,
    hasSeparatedScores,
    transform: ({ q, k }, dtype) => ({ q: q.map((x) => roundTo(x * size, dtype)), k }),
  };
}

/** Every other key has a score of −Infinity, and therefore no weight, for every query. */
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

/** Transforms to values on which a backend must be as accurate as on normally distributed values. */
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
  /** Lengths of the mesh's axes, and the axes along which the sequences are sharded. */
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
  /** Sample masks, if the samples attend to different keys. */
  readonly modifiers?: AttentionModifiers;
  readonly maskMod: MaskMod;
  readonly queries: { readonly length: number; readonly placement: Placement };
  readonly keys: { readonly length: number; readonly placement: Placement };
  /** Seed of all values. */
  readonly seed: number;
  /** Transform of the queries and keys. If absent, they remain normally distributed. */
  readonly values?: ValueTransform;
}

/** The complete tensors of a trial, rounded to its dtype, and the float64 results. */
export interface Reference extends OracleForward, OracleBackward {
  readonly problem: AttentionProblem;
  readonly dOut: Float64Array;
}

const referenceCache = new WeakMap<MaskMod, Map<string, Reference>>();

/**
 * Returns the reference of a trial. It is computed once for all ranks, placements and meshes, because float64 results
 * depend on the values and the visible pairs, not on which rank holds which rows.
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
