/** Whether the query at one global position sees the key at another. */
export type Sees = (query: number, key: number) => boolean;

/** Attention over whole sequences, dense and row-major: q [B,H,Sq,D], k and v [B,Hkv,Sk,D]. */
export interface AttentionProblem {
  readonly batch: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly queries: number;
  readonly keys: number;
  readonly headDim: number;
  readonly scale: number;
  readonly sees: Sees;
  readonly q: Float64Array;
  readonly k: Float64Array;
  readonly v: Float64Array;
}

export interface OracleForward {
  /** [B,H,Sq,D]; 0 in rows that see nothing, or nothing but scores of −Infinity. */
  readonly out: Float64Array;
  /** [B,H,Sq], natural logarithm; −Infinity in these. */
  readonly lse: Float64Array;
}

export interface OracleBackward {
  readonly dq: Float64Array;
  readonly dk: Float64Array;
  readonly dv: Float64Array;
}

/**
 * Softmax attention by its definition, in float64.
 *
 * @example
 * ```ts
 * import { attentionOracle } from "@mosaic/conformance";
 * const sizes = { batch: 1, heads: 1, kvHeads: 1, queries: 1, keys: 2, headDim: 1, scale: 1 };
 * const [q, k, v] = [Float64Array.of(0), Float64Array.of(1, 2), Float64Array.of(10, 20)];
 * const { out } = attentionOracle({ ...sizes, sees: (query, key) => key <= query, q, k, v });
 * out[0]; // => 10
 * ```
 */
export function attentionOracle(problem: AttentionProblem): OracleForward {
  const { batch, heads, queries, headDim, v } = problem;
  const out = new Float64Array(batch * heads * queries * headDim);
  const lse = new Float64Array(batch * heads * queries);
  eachRow(problem, ({ row, keyRow, seen, scores }) => {
    const { weights, logSum } = softmax(scores);
    lse[row] = logSum;
    seen.forEach((key, i) => addScaled(rowOf(out, row, headDim), weights[i]!, rowOf(v, keyRow + key, headDim)));
  });
  return { out, lse };
}

/** Its gradients, given dOut [B,H,Sq,D]: dS = P ∘ (dOut·vᵀ − rowsum(P ∘ dOut·vᵀ)). */
export function attentionOracleBackward(problem: AttentionProblem, dOut: Float64Array): OracleBackward {
  const { q, k, v, headDim, scale } = problem;
  const dq = new Float64Array(q.length);
  const dk = new Float64Array(k.length);
  const dv = new Float64Array(v.length);
  eachRow(problem, ({ row, keyRow, seen, scores }) => {
    const { weights } = softmax(scores);
    const dOutRow = rowOf(dOut, row, headDim);
    const dWeights = seen.map((key) => dot(dOutRow, rowOf(v, keyRow + key, headDim)));
    const delta = dWeights.reduce((total, dWeight, i) => total + weights[i]! * dWeight, 0);
    seen.forEach((key, i) => {
      const weight = weights[i]!;
      const dScore = weight * (dWeights[i]! - delta) * scale;
      addScaled(rowOf(dq, row, headDim), dScore, rowOf(k, keyRow + key, headDim));
      addScaled(rowOf(dk, keyRow + key, headDim), dScore, rowOf(q, row, headDim));
      addScaled(rowOf(dv, keyRow + key, headDim), weight, dOutRow);
    });
  });
  return { dq, dk, dv };
}

/** Weights and lse of a row; weights 0 and −Infinity if it sees nothing, or nothing but scores of −Infinity. */
function softmax(scores: readonly number[]): { readonly weights: readonly number[]; readonly logSum: number } {
  const max = Math.max(...scores);
  if (max === Number.NEGATIVE_INFINITY) return { weights: scores.map(() => 0), logSum: max };
  const exps = scores.map((score) => Math.exp(score - max));
  const sum = exps.reduce((total, x) => total + x, 0);
  return { weights: exps.map((x) => x / sum), logSum: max + Math.log(sum) };
}

interface Row {
  /** Number of the row in [B,H,Sq]. */
  readonly row: number;
  /** Number of the first row of its keys in [B,Hkv,Sk]. */
  readonly keyRow: number;
  /** The keys that it sees, and their scaled scores. */
  readonly seen: readonly number[];
  readonly scores: readonly number[];
}

export function eachRow(problem: AttentionProblem, visit: (row: Row) => void): void {
  const { batch, heads, kvHeads, queries, keys, headDim, scale, sees, q, k } = problem;
  const seenBy = Array.from({ length: queries }, (_, query) =>
    Array.from({ length: keys }, (_, key) => key).filter((key) => sees(query, key)),
  );
  for (let row = 0; row < batch * heads * queries; row++) {
    const head = Math.floor(row / queries) % heads;
    const kvHead = Math.floor(head / (heads / kvHeads));
    const keyRow = (Math.floor(row / queries / heads) * kvHeads + kvHead) * keys;
    const seen = seenBy[row % queries]!;
    const scores = seen.map((key) => scale * dot(rowOf(q, row, headDim), rowOf(k, keyRow + key, headDim)));
    visit({ row, keyRow, seen, scores });
  }
}

/** One row of a matrix whose rows have `width` numbers. */
function rowOf(x: Float64Array, row: number, width: number): Float64Array {
  return x.subarray(row * width, (row + 1) * width);
}

function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!;
  return sum;
}

function addScaled(out: Float64Array, factor: number, x: Float64Array): void {
  for (let i = 0; i < out.length; i++) out[i] = out[i]! + factor * x[i]!;
}
