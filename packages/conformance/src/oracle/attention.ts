import { type Slice, type SliceType, hasDiagonalStart, hasDiagonalEnd } from "@mosaic/core";
import { integer, uniforms } from "./numbers.ts";
import { modifyScore, type OracleModifiers, createWeightFactorFunction } from "./score-modifiers.ts";

/**
 * Whether a query attends to a key, by global positions, and by sample of the batch if masks differ between samples.
 */
export type MaskMod = (query: number, key: number, sample?: number) => boolean;

/** Attention over whole sequences, dense and row-major: q [B,H,Sq,D], k [B,Hkv,Sk,D] and v [B,Hkv,Sk,Dv]. */
export interface AttentionProblem {
  readonly batch: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly queries: number;
  readonly keys: number;
  readonly headDim: number;
  /** Dv. Default: the head size of the keys. */
  readonly valueHeadDim?: number;
  readonly scale: number;
  readonly maskMod: MaskMod;
  /** Modifiers of the scores and weights. None if absent. */
  readonly modifiers?: OracleModifiers;
  readonly q: Float64Array;
  readonly k: Float64Array;
  readonly v: Float64Array;
}

/** Result of attention in float64. */
export interface OracleForward {
  /** [B,H,Sq,Dv]. 0 in rows without visible keys, and in rows in which every score is −Infinity. */
  readonly out: Float64Array;
  /** [B,H,Sq], natural logarithm, sinks included. −Infinity in rows with neither a sink nor a visible key. */
  readonly lse: Float64Array;
}

/** Gradients of q, k and v in float64, each with the shape of its operand, and of the sinks. */
export interface OracleBackward {
  readonly dq: Float64Array;
  readonly dk: Float64Array;
  readonly dv: Float64Array;
  /** Gradients of the sinks: [H] if there are sinks, else empty. */
  readonly dSinks: Float64Array;
  /**
   * Sums over rows of the absolute values of the terms of dSinks, [H]. The rounding error of terms that cancel is
   * relative to this sum.
   */
  readonly dSinkMagnitudeSums: Float64Array;
}

/**
 * Computes softmax attention by its definition, in float64.
 *
 * @example
 * ```ts
 * import { attentionOracle } from "@mosaic/conformance";
 * const sizes = { batch: 1, numHeads: 1, numKvHeads: 1, queries: 1, keys: 2, headDim: 1, scale: 1 };
 * const [q, k, v] = [Float64Array.of(0), Float64Array.of(1, 2), Float64Array.of(10, 20)];
 * const { out } = attentionOracle({ ...sizes, maskMod: (query, key) => key <= query, q, k, v });
 * out[0]; // => 10
 * ```
 */
export function attentionOracle(problem: AttentionProblem): OracleForward {
  const { batch, numHeads, queries, keys, v, headDim, valueHeadDim = headDim } = problem;
  const weights = new Float64Array(keys);
  const out = new Float64Array(batch * numHeads * queries * valueHeadDim);
  const lse = new Float64Array(batch * numHeads * queries);
  forEachRow(problem, ({ row, firstKeyRow, visibleKeys, scores, factors, sink }) => {
    lse[row] = softmaxInto(weights, scores.subarray(0, visibleKeys.length), sink);
    for (let i = 0; i < visibleKeys.length; i++) {
      addScaled({ x: out, row }, weights[i]! * factors[i]!, { x: v, row: firstKeyRow + visibleKeys[i]! }, valueHeadDim);
    }
  });
  return { out, lse };
}

/**
 * Computes the gradients of `attentionOracle`, given dOut [B,H,Sq,Dv]: dS = P ∘ (dOut·vᵀ − rowsum(P ∘ dOut·vᵀ)),
 * multiplied by the derivatives of the modifiers.
 *
 * @example
 * ```ts
 * import { attentionOracleBackward } from "@mosaic/conformance";
 * const sizes = { batch: 1, numHeads: 1, numKvHeads: 1, queries: 1, keys: 2, headDim: 1, scale: 1 };
 * const [q, k, v] = [Float64Array.of(0), Float64Array.of(1, 2), Float64Array.of(10, 20)];
 * const problem = { ...sizes, maskMod: () => true, q, k, v };
 * attentionOracleBackward(problem, Float64Array.of(1)).dv; // => Float64Array [0.5, 0.5]
 * ```
 */
export function attentionOracleBackward(problem: AttentionProblem, dOut: Float64Array): OracleBackward {
  const { q, k, v, headDim, valueHeadDim = headDim, scale, keys, modifiers } = problem;
  const dq = new Float64Array(q.length);
  const dk = new Float64Array(k.length);
  const dv = new Float64Array(v.length);
  const dSinks = new Float64Array(modifiers?.sinks?.length ?? 0);
  const dSinkMagnitudeSums = new Float64Array(dSinks.length);
  const weights = new Float64Array(keys);
  const dWeights = new Float64Array(keys);
  forEachRow(problem, ({ row, head, firstKeyRow, visibleKeys, scores, derivatives, factors, sink }) => {
    const lse = softmaxInto(weights, scores.subarray(0, visibleKeys.length), sink);
    let delta = 0;
    for (let i = 0; i < visibleKeys.length; i++) {
      dWeights[i] = factors[i]! * dot({ x: dOut, row }, { x: v, row: firstKeyRow + visibleKeys[i]! }, valueHeadDim);
      delta += weights[i]! * dWeights[i]!;
    }
    if (dSinks.length > 0) {
      const term = Math.exp(sink - lse) * delta;
      dSinks[head]! -= term;
      dSinkMagnitudeSums[head]! += Math.abs(term);
    }
    for (let i = 0; i < visibleKeys.length; i++) {
      const key = firstKeyRow + visibleKeys[i]!;
      const weight = weights[i]!;
      const dScore = weight * (dWeights[i]! - delta) * derivatives[i]! * scale;
      addScaled({ x: dq, row }, dScore, { x: k, row: key }, headDim);
      addScaled({ x: dk, row: key }, dScore, { x: q, row }, headDim);
      addScaled({ x: dv, row: key }, weight * factors[i]!, { x: dOut, row }, valueHeadDim);
    }
  });
  return { dq, dk, dv, dSinks, dSinkMagnitudeSums };
}

interface ScoreRow {
  /** Index of the row in [B,H,Sq], and its head. */
  readonly row: number;
  readonly head: number;
  /** Index of the first row of its keys in [B,Hkv,Sk]. */
  readonly firstKeyRow: number;
  /** Positions of the visible keys. Element i of each array below belongs to the i-th of these keys. */
  readonly visibleKeys: readonly number[];
  /** Scores, scaled and modified. */
  readonly scores: Float64Array;
  /** Derivatives of `scores` with respect to the scaled scores before modifiers. */
  readonly derivatives: Float64Array;
  /** Factors by which dropout multiplies the weights. */
  readonly factors: Float64Array;
  /** Logit of the sink. −Infinity if there is none. */
  readonly sink: number;
}

function forEachRow(problem: AttentionProblem, visit: (row: ScoreRow) => void): void {
  const { batch, numHeads, numKvHeads, queries, keys, headDim, scale, maskMod, q, k, modifiers = {} } = problem;
  const visibleKeysByRow = Array.from({ length: batch * queries }, (_, row) => {
    const sample = Math.floor(row / queries);
    return Array.from({ length: keys }, (_, key) => key).filter((key) => maskMod(row % queries, key, sample));
  });
  const computeFactor = createWeightFactorFunction(modifiers);
  const [scores, derivatives, factors] = [1, 2, 3].map(() => new Float64Array(keys)) as [
    Float64Array,
    Float64Array,
    Float64Array,
  ];
  for (let row = 0; row < batch * numHeads * queries; row++) {
    const head = Math.floor(row / queries) % numHeads;
    const kvHead = Math.floor(head / (numHeads / numKvHeads));
    const sample = Math.floor(row / queries / numHeads);
    const query = row % queries;
    const firstKeyRow = (sample * numKvHeads + kvHead) * keys;
    const visibleKeys = visibleKeysByRow[sample * queries + query]!;
    for (let i = 0; i < visibleKeys.length; i++) {
      const pair = { sample, head, query, key: visibleKeys[i]! };
      const scaledScore = scale * dot({ x: q, row }, { x: k, row: firstKeyRow + visibleKeys[i]! }, headDim);
      const { score, derivative } = modifyScore(modifiers, scaledScore, pair);
      scores[i] = score;
      derivatives[i] = derivative;
      factors[i] = computeFactor(pair);
    }
    const sink = modifiers.sinks?.[head] ?? Number.NEGATIVE_INFINITY;
    visit({ row, head, firstKeyRow, visibleKeys, scores, derivatives, factors, sink });
  }
}

/**
 * Computes the softmax weights of scores and a sink, and returns the lse. If there is no score or sink above −Infinity,
 * weights are 0 and the lse is −Infinity.
 */
function softmaxInto(weights: Float64Array, scores: Float64Array, sink: number): number {
  const max = scores.reduce((largestScore, score) => Math.max(largestScore, score), sink);
  weights.fill(0, 0, scores.length);
  if (max === Number.NEGATIVE_INFINITY) return max;
  let sum = Math.exp(sink - max);
  for (let i = 0; i < scores.length; i++) {
    weights[i] = Math.exp(scores[i]! - max);
    sum += weights[i]!;
  }
  for (let i = 0; i < scores.length; i++) weights[i]! /= sum;
  return max + Math.log(sum);
}

/** One row of a dense matrix. */
interface MatrixRow {
  readonly x: Float64Array;
  readonly row: number;
}

function dot(a: MatrixRow, b: MatrixRow, width: number): number {
  const [offsetA, offsetB] = [a.row * width, b.row * width];
  let sum = 0;
  for (let i = 0; i < width; i++) sum += a.x[offsetA + i]! * b.x[offsetB + i]!;
  return sum;
}

function addScaled(out: MatrixRow, factor: number, addend: MatrixRow, width: number): void {
  const [outOffset, addendOffset] = [out.row * width, addend.row * width];
  for (let i = 0; i < width; i++) out.x[outOffset + i] = out.x[outOffset + i]! + factor * addend.x[addendOffset + i]!;
}

/**
 * Returns whether a slice contains a pair. The only definition of slices in this package, independent of core's code.
 *
 * @example
 * ```ts
 * import { isPairVisible } from "@mosaic/conformance";
 * const slice = { q0: 0, q1: 4, k0: 0, k1: 4, type: "causal" } as const;
 * [isPairVisible(slice, 2, 2), isPairVisible(slice, 2, 3)]; // => [true, false]
 * ```
 */
export function isPairVisible(slice: Slice, query: number, key: number): boolean {
  if (query < slice.q0 || query >= slice.q1) return false;
  const firstKey = slice.k0 + (hasDiagonalStart(slice.type) ? query - slice.q0 : 0);
  const endKey = slice.k1 - (hasDiagonalEnd(slice.type) ? slice.q1 - 1 - query : 0);
  return key >= firstKey && key < endKey;
}

/**
 * Returns the mask function of a list of slices.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * import { slicesToMaskMod } from "@mosaic/conformance";
 * const maskMod = slicesToMaskMod(masks.causal().slices(4, 4));
 * [maskMod(2, 2), maskMod(2, 3)]; // => [true, false]
 * ```
 */
export function slicesToMaskMod(slices: readonly Slice[]): MaskMod {
  return (query, key) => slices.some((slice) => isPairVisible(slice, query, key));
}

const sliceTypes: readonly SliceType[] = ["full", "causal", "inverseCausal", "bidirectionalCausal"];

/**
 * Returns a random list of disjoint slices of all four types, some of them empty: bands of rows, each with up to two
 * slices. The same for the same seed.
 *
 * @example
 * ```ts
 * import { randomSlices } from "@mosaic/conformance";
 * randomSlices(8, 8, 1).every(({ q1, k1 }) => q1 <= 8 && k1 <= 8); // => true
 * ```
 */
export function randomSlices(queries: number, keys: number, seed: number): Slice[] {
  const nextUniform = uniforms(seed);
  const slices: Slice[] = [];
  for (let q0 = 0; q0 < queries; ) {
    const q1 = Math.min(queries, q0 + 1 + integer(nextUniform, Math.ceil(queries / 2)));
    const keyBoundaries = Array.from({ length: 4 }, () => integer(nextUniform, keys + 1)).toSorted((a, b) => a - b);
    for (let remainingSlices = integer(nextUniform, 3); remainingSlices > 0; remainingSlices--) {
      const [k0, k1] = [keyBoundaries[2 * remainingSlices - 2]!, keyBoundaries[2 * remainingSlices - 1]!];
      slices.push({ q0, q1, k0, k1, type: sliceTypes[integer(nextUniform, 4)]! });
    }
    q0 = q1;
  }
  return slices;
}

/**
 * Returns the smallest difference between the two largest scores of a row, over all rows, or Infinity if no row has two
 * visible keys.
 */
export function smallestTopScoreGap(problem: AttentionProblem): number {
  let smallestScoreGap = Number.POSITIVE_INFINITY;
  forEachRow(problem, ({ scores, visibleKeys }) => {
    const [largestScore, secondLargestScore] = scores.slice(0, visibleKeys.length).toSorted((a, b) => b - a);
    if (secondLargestScore !== undefined)
      smallestScoreGap = Math.min(smallestScoreGap, largestScore! - secondLargestScore);
  });
  return smallestScoreGap;
}
