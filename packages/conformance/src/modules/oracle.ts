import { matmulOracle } from "../device/matmul.ts";
import { attentionOracle, attentionOracleBackward, type AttentionProblem, type MaskMod } from "../oracle/attention.ts";

// B batch, S sequence, E embedding, H query heads, G KV heads, D head size.

/** The sizes of a MultiAxisAttention over x [B,S,E]. */
export interface ModuleSizes {
  readonly batch: number;
  readonly length: number;
  readonly embed: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
}

/** Values by the names of MultiAxisAttention's parameters: weights [out,in], laid out [q|k|v]. */
export interface ModuleParameters {
  readonly "qkv_proj.weight": Float64Array;
  readonly "qkv_proj.bias": Float64Array;
  readonly "out_proj.weight": Float64Array;
  readonly "out_proj.bias": Float64Array;
}

/** A self-attention module with its input, and the gradient of its output. */
export interface ModuleProblem {
  readonly sizes: ModuleSizes;
  readonly maskMod: MaskMod;
  readonly parameters: ModuleParameters;
  /** x and the gradient of the output, [B,S,E]. */
  readonly x: Float64Array;
  readonly dOut: Float64Array;
}

/** Output [B,S,E] and gradients of a module in float64. */
export interface ModuleReference {
  readonly out: Float64Array;
  readonly dx: Float64Array;
  readonly gradients: ModuleParameters;
  /** The largest |lse|. */
  readonly lse: number;
}

/** Computes multi-head attention between two linear layers, forward and backward, in float64. */
export function moduleOracle({ sizes, maskMod, parameters, x, dOut }: ModuleProblem): ModuleReference {
  const { batch, length, embed, numHeads, numKvHeads, headDim } = sizes;
  const rows = batch * length;
  const attentionWidth = numHeads * headDim;
  const qkvWidth = (numHeads + 2 * numKvHeads) * headDim;
  const qkvSizes: LinearSizes = { rows, inWidth: embed, outWidth: qkvWidth };
  const outSizes: LinearSizes = { rows, inWidth: attentionWidth, outWidth: embed };

  const qkv = linear(x, parameters["qkv_proj.weight"], parameters["qkv_proj.bias"], qkvSizes);
  const createHeadRange = (first: number, count: number): HeadRange => ({
    first,
    count,
    headCount: numHeads + 2 * numKvHeads,
  });
  const headRanges = {
    q: createHeadRange(0, numHeads),
    k: createHeadRange(numHeads, numKvHeads),
    v: createHeadRange(numHeads + numKvHeads, numKvHeads),
  };
  const problem: AttentionProblem = {
    batch,
    numHeads,
    numKvHeads,
    queries: length,
    keys: length,
    headDim,
    scale: 1 / Math.sqrt(headDim),
    maskMod,
    q: splitHeads(qkv, sizes, headRanges.q),
    k: splitHeads(qkv, sizes, headRanges.k),
    v: splitHeads(qkv, sizes, headRanges.v),
  };
  const allHeads = { first: 0, count: numHeads, headCount: numHeads };
  const { out: attentionOut, lse } = attentionOracle(problem);
  const mergedHeads = new Float64Array(rows * attentionWidth);
  mergeHeads(mergedHeads, attentionOut, { sizes, range: allHeads });
  const out = linear(mergedHeads, parameters["out_proj.weight"], parameters["out_proj.bias"], outSizes);

  const outGradients = linearBackward(dOut, mergedHeads, parameters["out_proj.weight"], outSizes);
  const { dq, dk, dv } = attentionOracleBackward(problem, splitHeads(outGradients.dx, sizes, allHeads));
  const dQkv = new Float64Array(qkv.length);
  mergeHeads(dQkv, dq, { sizes, range: headRanges.q });
  mergeHeads(dQkv, dk, { sizes, range: headRanges.k });
  mergeHeads(dQkv, dv, { sizes, range: headRanges.v });
  const qkvGradients = linearBackward(dQkv, x, parameters["qkv_proj.weight"], qkvSizes);
  return {
    out,
    dx: qkvGradients.dx,
    gradients: {
      "qkv_proj.weight": qkvGradients.dWeight,
      "qkv_proj.bias": qkvGradients.dBias,
      "out_proj.weight": outGradients.dWeight,
      "out_proj.bias": outGradients.dBias,
    },
    lse: lse.reduce((largest, each) => (Number.isFinite(each) ? Math.max(largest, Math.abs(each)) : largest), 0),
  };
}

interface LinearSizes {
  readonly rows: number;
  readonly inWidth: number;
  readonly outWidth: number;
}

// oxlint-disable-next-line max-params -- x · Wᵀ + b
function linear(
  x: Float64Array,
  weight: Float64Array,
  bias: Float64Array,
  { rows, inWidth: from, outWidth: to }: LinearSizes,
): Float64Array {
  const out = matmulOracle(x, transpose(weight, to, from), { m: rows, n: to, k: from });
  return out.map((value, i) => value + bias[i % to]!);
}

function linearBackward(
  dOut: Float64Array,
  x: Float64Array,
  weight: Float64Array,
  { rows, inWidth: from, outWidth: to }: LinearSizes,
): { dx: Float64Array; dWeight: Float64Array; dBias: Float64Array } {
  return {
    dx: matmulOracle(dOut, weight, { m: rows, n: from, k: to }),
    dWeight: matmulOracle(transpose(dOut, rows, to), x, { m: to, n: from, k: rows }),
    dBias: matmulOracle(new Float64Array(rows).fill(1), dOut, { m: 1, n: to, k: rows }),
  };
}

function transpose(x: Float64Array, rows: number, columns: number): Float64Array {
  return Float64Array.from({ length: x.length }, (_, i) => x[(i % rows) * columns + Math.floor(i / rows)]!);
}

/** Range of the adjacent heads in a row. */
interface HeadRange {
  readonly first: number;
  readonly count: number;
  readonly headCount: number;
}

/** Copies a range of heads from [B,S,heads·D] to [B,count,S,D]. */
function splitHeads(rows: Float64Array, sizes: ModuleSizes, range: HeadRange): Float64Array {
  const out = new Float64Array(sizes.batch * range.count * sizes.length * sizes.headDim);
  forEachHead(sizes, range, (rowOffset, headOffset) =>
    out.set(rows.subarray(rowOffset, rowOffset + sizes.headDim), headOffset),
  );
  return out;
}

/** Copies [B,count,S,D] to a range of heads in rows: the inverse of `splitHeads`. */
function mergeHeads(
  rows: Float64Array,
  heads: Float64Array,
  { sizes, range }: { sizes: ModuleSizes; range: HeadRange },
): void {
  forEachHead(sizes, range, (rowOffset, headOffset) =>
    rows.set(heads.subarray(headOffset, headOffset + sizes.headDim), rowOffset),
  );
}

function forEachHead(
  { batch, length, headDim }: ModuleSizes,
  { first, count, headCount }: HeadRange,
  visit: (rowOffset: number, headOffset: number) => void,
): void {
  for (let b = 0; b < batch; b++) {
    for (let head = 0; head < count; head++) {
      for (let s = 0; s < length; s++) {
        visit(((b * length + s) * headCount + first + head) * headDim, ((b * count + head) * length + s) * headDim);
      }
    }
  }
}
