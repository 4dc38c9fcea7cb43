import { type Slice, visibleKeyRange } from "@mosaic/attention/core";
import type { Settings } from "./job.ts";

/** Maximum number of query rows that are checked against float64 and read by the loss of `--backward`. */
const MAX_SAMPLED_ROWS = 128;

/** Returns rows spread evenly over the sequence, or all rows of a short sequence. */
export function sampleRows(tokens: number): readonly number[] {
  const count = Math.min(MAX_SAMPLED_ROWS, tokens);
  return Array.from({ length: count }, (_, i) => Math.floor(((i + 0.5) * tokens) / count));
}

/** Returns the gradient of the loss with respect to `out` at one sampled row, [H,D]. It is exact in every dtype. */
export function cotangentAt({ seed, numHeads, headDim }: Settings, row: number): Float32Array {
  const cotangents = randomNormals(seed * 8 + 7 + (row + 1) * 1_000_003, numHeads * headDim);
  return Float32Array.from(cotangents, (x) => Math.round(Math.max(-4, Math.min(4, x)) * 16) / 16);
}

/** Returns dOut [H,S,D] at the given positions. It is zero except at the sampled rows. */
export function cotangent(settings: Settings, positions: Int32Array): Float32Array<ArrayBuffer> {
  const { numHeads, headDim } = settings;
  const sampledRowSet = new Set(sampleRows(settings.tokens));
  const dOut = new Float32Array(numHeads * positions.length * headDim);
  positions.forEach((position, row) => {
    if (!sampledRowSet.has(position)) return;
    const values = cotangentAt(settings, position);
    for (let head = 0; head < numHeads; head++) {
      dOut.set(values.subarray(head * headDim, (head + 1) * headDim), (head * positions.length + row) * headDim);
    }
  });
  return dOut;
}

/** Returns standard normal numbers that depend on the seed only: Box–Muller over the mulberry32 generator. */
export function randomNormals(seed: number, count: number): Float64Array {
  const nextUniform = mulberry32(seed);
  const out = new Float64Array(count);
  for (let i = 0; i < count; i += 2) {
    const radius = Math.sqrt(-2 * Math.log(1 - nextUniform()));
    const angle = 2 * Math.PI * nextUniform();
    out[i] = radius * Math.cos(angle);
    if (i + 1 < count) out[i + 1] = radius * Math.sin(angle);
  }
  return out;
}

function mulberry32(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = Math.imul(state ^ (state >>> 15), state | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) / 2 ** 32;
  };
}

// Shapes: H heads, n positions, D size of a head.

/** Queries, keys and values of the whole sequence, rounded as on the device, [H,n,D]. */
export interface Problem {
  readonly q: Float32Array;
  readonly k: Float32Array;
  readonly v: Float32Array;
  readonly numHeads: number;
  readonly tokens: number;
  readonly headDim: number;
  /** Slices of the attention mask. */
  readonly mask: readonly Slice[];
}

/** Float64 results of one head at the sampled rows: out and dq [rows,D]; dk and dv [n,D]. */
export interface HeadReference {
  readonly out: Float64Array;
  readonly dq: Float64Array;
  readonly dk: Float64Array;
  readonly dv: Float64Array;
  /** Natural logarithm of the sum of e^score, for each row. */
  readonly lse: Float64Array;
  /** e^entropy of each row's weights: the number of keys that it attends to. */
  readonly effectiveKeyCounts: Float64Array;
}

/**
 * Computes attention of one head at some query rows over all keys that are visible to them, in float64.
 *
 * With `dOut` [rows,D], also computes the gradients. The loss reads only the sampled rows, so that dk and dv are sums
 * over those rows and exact for every key, at a cost of rows · n · D instead of n² · D.
 */
export function referenceAttention(
  problem: Problem,
  head: number,
  rows: readonly number[],
  dOut?: Float64Array,
): HeadReference {
  const { tokens, headDim } = problem;
  const gradientSize = dOut === undefined ? 0 : tokens * headDim;
  const reference: HeadReference = {
    out: new Float64Array(rows.length * headDim),
    dq: new Float64Array(dOut?.length ?? 0),
    dk: new Float64Array(gradientSize),
    dv: new Float64Array(gradientSize),
    lse: new Float64Array(rows.length),
    effectiveKeyCounts: new Float64Array(rows.length),
  };
  const weights = new Float64Array(tokens);
  const headOffset = head * tokens * headDim;
  const k = problem.k.subarray(headOffset, headOffset + tokens * headDim);
  const v = problem.v.subarray(headOffset, headOffset + tokens * headDim);
  rows.forEach((row, index) => {
    const keys = visibleKeys(problem.mask, row);
    const visibleWeights = weights.subarray(0, keys.length);
    const q = Float64Array.from(problem.q.subarray(headOffset + row * headDim, headOffset + (row + 1) * headDim));
    const { lse, effectiveKeyCount } = softmaxOfScores(visibleWeights, keys, { q, k });
    reference.lse[index] = lse;
    reference.effectiveKeyCounts[index] = effectiveKeyCount;
    const rowRange = [index * headDim, (index + 1) * headDim] as const;
    const out = reference.out.subarray(...rowRange);
    for (let i = 0; i < keys.length; i++) addScaled(out, visibleWeights[i]!, v, keys[i]! * headDim);
    if (dOut === undefined) return;
    addGradients(
      { q, k, v, out, keys, weights: visibleWeights, dOut: dOut.subarray(...rowRange) },
      {
        dq: reference.dq.subarray(...rowRange),
        dk: reference.dk,
        dv: reference.dv,
      },
    );
  });
  return reference;
}

/** Returns the keys that are visible to a query. */
function visibleKeys(mask: readonly Slice[], row: number): readonly number[] {
  const keys: number[] = [];
  for (const slice of mask) {
    if (row < slice.q0 || slice.q1 <= row) continue;
    const { start, end } = visibleKeyRange(slice, row);
    for (let key = start; key < end; key++) keys.push(key);
  }
  return keys;
}

/** Computes weights ← softmax(q·k/√D) over the keys that are visible to a query. There must be at least one. */
function softmaxOfScores(
  weights: Float64Array,
  keys: readonly number[],
  { q, k }: { readonly q: Float64Array; readonly k: Float32Array },
): { readonly lse: number; readonly effectiveKeyCount: number } {
  const scale = 1 / Math.sqrt(q.length);
  let max = -Infinity;
  for (let i = 0; i < keys.length; i++) {
    const score = scale * dot(q, k, keys[i]! * q.length);
    weights[i] = score;
    if (score > max) max = score;
  }
  let sum = 0;
  let weightedScoreSum = 0;
  for (let i = 0; i < weights.length; i++) {
    const shiftedScore = weights[i]! - max;
    const weight = Math.exp(shiftedScore);
    weights[i] = weight;
    sum += weight;
    weightedScoreSum += weight * shiftedScore;
  }
  for (let i = 0; i < weights.length; i++) weights[i]! /= sum;
  return { lse: max + Math.log(sum), effectiveKeyCount: sum * Math.exp(-weightedScoreSum / sum) };
}

interface ReferenceRow {
  readonly q: Float64Array;
  readonly k: Float32Array;
  readonly v: Float32Array;
  readonly out: Float64Array;
  /** The visible keys and their weights. */
  readonly keys: readonly number[];
  readonly weights: Float64Array;
  readonly dOut: Float64Array;
}

/** Computes dS = P ∘ (dOut·Vᵀ − dOut·out), dq = dS·K·scale, dk += dSᵀ·q·scale, dv += Pᵀ·dOut. */
function addGradients(
  row: ReferenceRow,
  { dq, dk, dv }: { dq: Float64Array; dk: Float64Array; dv: Float64Array },
): void {
  const headDim = row.q.length;
  const scale = 1 / Math.sqrt(headDim);
  const delta = row.dOut.reduce((sum, d, i) => sum + d * row.out[i]!, 0);
  for (let i = 0; i < row.keys.length; i++) {
    const keyOffset = row.keys[i]! * headDim;
    const weight = row.weights[i]!;
    const dScore = weight * (dot(row.dOut, row.v, keyOffset) - delta) * scale;
    for (let d = 0; d < headDim; d++) {
      dq[d]! += dScore * row.k[keyOffset + d]!;
      dk[keyOffset + d]! += dScore * row.q[d]!;
      dv[keyOffset + d]! += weight * row.dOut[d]!;
    }
  }
}

function dot(a: Float64Array, b: Float32Array, offset: number): number {
  let sum = 0;
  for (let d = 0; d < a.length; d++) sum += a[d]! * b[offset + d]!;
  return sum;
}

function addScaled(out: Float64Array, factor: number, x: Float32Array, offset: number): void {
  for (let d = 0; d < out.length; d++) out[d]! += factor * x[offset + d]!;
}
