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
  /** [B,H,Sq,D]; 0 in rows that see nothing. */
  readonly out: Float64Array;
  /** [B,H,Sq], natural logarithm; −Infinity in rows that see nothing. */
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
    const { max, sum } = softmaxTerms(scores, seen.length);
    const rowLse = seen.length === 0 ? Number.NEGATIVE_INFINITY : max + Math.log(sum);
    lse[row] = rowLse;
    for (let i = 0; i < seen.length; i++) {
      addScaled({ x: out, row }, Math.exp(scores[i]! - rowLse), { x: v, row: keyRow + seen[i]! }, headDim);
    }
  });
  return { out, lse };
}

/** Its gradients, given dOut [B,H,Sq,D]: dS = P ∘ (dOut·vᵀ − rowsum(P ∘ dOut·vᵀ)). */
export function attentionOracleBackward(problem: AttentionProblem, dOut: Float64Array): OracleBackward {
  const { q, k, v, headDim, scale, keys } = problem;
  const dq = new Float64Array(q.length);
  const dk = new Float64Array(k.length);
  const dv = new Float64Array(v.length);
  const weights = new Float64Array(keys);
  const dWeights = new Float64Array(keys);
  eachRow(problem, ({ row, keyRow, seen, scores }) => {
    const { max, sum } = softmaxTerms(scores, seen.length);
    let delta = 0;
    for (let i = 0; i < seen.length; i++) {
      weights[i] = Math.exp(scores[i]! - max) / sum;
      dWeights[i] = dot({ x: dOut, row }, { x: v, row: keyRow + seen[i]! }, headDim);
      delta += weights[i]! * dWeights[i]!;
    }
    for (let i = 0; i < seen.length; i++) {
      const key = keyRow + seen[i]!;
      const weight = weights[i]!;
      const dScore = weight * (dWeights[i]! - delta) * scale;
      addScaled({ x: dq, row }, dScore, { x: k, row: key }, headDim);
      addScaled({ x: dk, row: key }, dScore, { x: q, row }, headDim);
      addScaled({ x: dv, row: key }, weight, { x: dOut, row }, headDim);
    }
  });
  return { dq, dk, dv };
}

interface Row {
  /** Number of the row in [B,H,Sq]. */
  readonly row: number;
  /** Number of the first row of its keys in [B,Hkv,Sk]. */
  readonly keyRow: number;
  /** The keys that it sees, and first in `scores` their scaled scores. */
  readonly seen: readonly number[];
  readonly scores: Float64Array;
}

function eachRow(problem: AttentionProblem, visit: (row: Row) => void): void {
  const { batch, heads, kvHeads, queries, keys, headDim, scale, sees, q, k } = problem;
  const seenBy = Array.from({ length: queries }, (_, query) =>
    Array.from({ length: keys }, (_, key) => key).filter((key) => sees(query, key)),
  );
  const scores = new Float64Array(keys);
  for (let row = 0; row < batch * heads * queries; row++) {
    const head = Math.floor(row / queries) % heads;
    const kvHead = Math.floor(head / (heads / kvHeads));
    const keyRow = (Math.floor(row / queries / heads) * kvHeads + kvHead) * keys;
    const seen = seenBy[row % queries]!;
    for (let i = 0; i < seen.length; i++) {
      scores[i] = scale * dot({ x: q, row }, { x: k, row: keyRow + seen[i]! }, headDim);
    }
    visit({ row, keyRow, seen, scores });
  }
}

/** The largest of the first `count` scores, and the sum of the exponentials of their distances from it. */
function softmaxTerms(scores: Float64Array, count: number): { readonly max: number; readonly sum: number } {
  let max = Number.NEGATIVE_INFINITY;
  for (let i = 0; i < count; i++) max = Math.max(max, scores[i]!);
  let sum = 0;
  for (let i = 0; i < count; i++) sum += Math.exp(scores[i]! - max);
  return { max, sum };
}

/** One row of a dense matrix. */
interface MatrixRow {
  readonly x: Float64Array;
  readonly row: number;
}

function dot(a: MatrixRow, b: MatrixRow, width: number): number {
  const [fromA, fromB] = [a.row * width, b.row * width];
  let sum = 0;
  for (let i = 0; i < width; i++) sum += a.x[fromA + i]! * b.x[fromB + i]!;
  return sum;
}

function addScaled(out: MatrixRow, factor: number, added: MatrixRow, width: number): void {
  const [to, from] = [out.row * width, added.row * width];
  for (let i = 0; i < width; i++) out.x[to + i] = out.x[to + i]! + factor * added.x[from + i]!;
}
