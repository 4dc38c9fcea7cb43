import * as mosaic from "@mosaic/attention";
import { attentionOracle, attentionOracleBackward, normals } from "@mosaic/conformance";
import type { Errors } from "./bench.ts";
import {
  attend,
  disposeAll,
  dtypes,
  type Operands,
  type Problem,
  detachGradients,
  setRequiresGrad,
} from "./problem.ts";

/** Largest relative error that rounding explains, for products of numbers with 8 or 11 bits. */
export const tolerances = { bf16: 1e-2, fp16: 2e-3 } as const;
/** Tolerance factor for single rows and for sums that cancel, which vary more than whole tensors. */
const SINGLE_ROW_TOLERANCE_FACTOR = 3;

/** Draws the problem on the host, and compares all results with the definition in float64. */
export async function checkAgainstDefinition(ctx: mosaic.Context, problem: Problem): Promise<Errors> {
  const { batch, numHeads, n, d, mask } = problem;
  const dtype = dtypes[problem.dtype];
  const seed = Math.floor(Math.random() * 2 ** 30);
  const [q, k, v, dOut] = [0, 1, 2, 3].map((i) => normals(batch * numHeads * n * d, seed + i, dtype)) as [
    Float64Array,
    Float64Array,
    Float64Array,
    Float64Array,
  ];
  const referenceOptions = { maskMod: (row: number, key: number) => mask === "full" || key <= row, q, k, v };
  const sizes = { batch, numHeads, numKvHeads: numHeads, queries: n, keys: n, headDim: d, scale: d ** -0.5 };
  const { out: expectedOut } = attentionOracle({ ...sizes, ...referenceOptions });
  const expected = { out: expectedOut, ...attentionOracleBackward({ ...sizes, ...referenceOptions }, dOut) };

  const toTensor = (x: Float64Array): mosaic.Tensor => mosaic.fromArray(ctx, x, [batch, numHeads, n, d], { dtype });
  const operands = setRequiresGrad([toTensor(q), toTensor(k), toTensor(v), toTensor(dOut)], { direction: "backward" });
  using actualOut = attend(ctx, operands, problem);
  actualOut.backward(operands[3]);
  const gradients = detachGradients(operands);
  const [o, dq, dk, dv] = await Promise.all([actualOut, ...gradients].map((x) => x.read()));
  disposeAll([...operands, ...gradients]);
  return {
    out: relativeError(o!, expected.out),
    dq: relativeError(dq!, expected.dq),
    dk: relativeError(dk!, expected.dk),
    dv: relativeError(dv!, expected.dv),
  };
}

/**
 * Checks results of any size. Compares some rows of out, and of dq for the backward, with the definition. For the
 * backward it also checks that the sum of dv equals that of dOut (weights of a row sum to 1) and that the sum of dk is
 * 0 (gradients of a row's scores sum to 0).
 *
 * @throws Error that reports which result is wrong.
 */
export async function checkSamples(ctx: mosaic.Context, operands: Operands, problem: Problem): Promise<void> {
  const { batch, numHeads, n, direction } = problem;
  const tolerance = SINGLE_ROW_TOLERANCE_FACTOR * tolerances[problem.dtype];
  using out = attend(ctx, operands, problem);
  if (direction === "backward") out.backward(operands[3]);
  const [dq, dk, dv] = direction === "backward" ? detachGradients(operands) : [];
  const rowPositions = [
    { b: 0, h: 0, i: 0 },
    { b: batch - 1, h: numHeads - 1, i: n - 1 },
    { b: Math.floor(batch / 2), h: Math.floor(numHeads / 2), i: Math.floor(n * Math.random()) },
  ];
  for (const rowPosition of rowPositions) {
    const row = await readRow(operands, problem, rowPosition);
    checkTolerance(
      `out of row ${rowPosition.i}`,
      relativeError(await readRowAt(out, rowPosition), computeAttentionRow(row)),
      tolerance,
    );
    // The first causal row attends to one key only. Its gradient is 0, so it has no relative error.
    if (dq && row.scores.length > 1) {
      checkTolerance(
        `dq of row ${rowPosition.i}`,
        relativeError(await readRowAt(dq, rowPosition), computeGradientRow(row)),
        tolerance,
      );
    }
  }
  if (dk && dv) await checkSums(operands[3], dk, dv, tolerance);
  disposeAll([dq, dk, dv].filter((x) => x !== undefined));
}

async function checkSums(dOut: mosaic.Tensor, dk: mosaic.Tensor, dv: mosaic.Tensor, tolerance: number): Promise<void> {
  const [dvSum, dOutSum, dkSum, dkSquareSum] = await Promise.all([
    sumOverSequence(dv),
    sumOverSequence(dOut),
    sumOverSequence(dk),
    computeSumOfSquares(dk),
  ]);
  checkTolerance("the sum of dv over keys", relativeError(dvSum, dOutSum), tolerance);
  checkTolerance("the sum of dk over keys", norm(dkSum) / Math.sqrt(dkSquareSum), tolerance);
}

function checkTolerance(quantity: string, error: number, tolerance: number): void {
  // This comparison is false for NaN.
  if (error < tolerance) return;
  throw new Error(
    `${quantity}: relative error ${error.toExponential(1)}, expected less than ${tolerance.toExponential(1)}`,
  );
}

/** Returns the Euclidean norm. Math.hypot is not used, because the number of arguments of a call is limited. */
function norm(x: Float32Array): number {
  return Math.sqrt(x.reduce((sum, value) => sum + value * value, 0));
}

/** Sums over the sequence in float32. The result is [batch, heads, 1, d]. */
async function sumOverSequence(x: mosaic.Tensor): Promise<Float32Array> {
  const float32Sums = x.device.empty(x.shape.toSpliced(2, 1, 1), "float32");
  x.device.kernels.reduce("sum", float32Sums, x);
  const sums = await float32Sums.read();
  float32Sums.dispose();
  return sums;
}

async function computeSumOfSquares(x: mosaic.Tensor): Promise<number> {
  using rowDots = x.device.empty(x.shape.slice(0, 3), "float32");
  x.device.kernels.rowDot(rowDots, x, x);
  return (await rowDots.read()).reduce((sum, rowDot) => sum + rowDot, 0);
}

interface RowPosition {
  readonly b: number;
  readonly h: number;
  readonly i: number;
}

async function readRow(operands: Operands, { mask, n, d }: Problem, { b, h, i }: RowPosition): Promise<AttentionRow> {
  const [q, k, v, dOut] = await Promise.all([
    readRowAt(operands[0], { b, h, i }),
    readHead(operands[1], { b, h }, mask === "causal" ? i + 1 : n),
    readHead(operands[2], { b, h }, mask === "causal" ? i + 1 : n),
    readRowAt(operands[3], { b, h, i }),
  ]);
  const scores = Array.from({ length: k.length / d }, (_, key) => {
    let sum = 0;
    for (let c = 0; c < d; c++) sum += q[c]! * k[key * d + c]!;
    return sum * d ** -0.5;
  });
  return { scores, k, v, dOut, d };
}

async function readRowAt(x: mosaic.Tensor, { b, h, i }: RowPosition): Promise<Float32Array> {
  return readSlice(x, [b, h, i], [1, 1, 1]);
}

async function readHead(x: mosaic.Tensor, { b, h }: Omit<RowPosition, "i">, rows: number): Promise<Float32Array> {
  return readSlice(x, [b, h, 0], [1, 1, rows]);
}

async function readSlice(
  x: mosaic.Tensor,
  starts: readonly number[],
  lengths: readonly number[],
): Promise<Float32Array> {
  const offset = starts.reduce((sum, start, axis) => sum + start * x.strides[axis]!, x.offset);
  using sliceView = x.view({ shape: [...lengths, x.shape[3]!], offset });
  return sliceView.read();
}

/** One row of attention: its scaled scores, and the keys and values that are visible to it, row-major. */
interface AttentionRow {
  readonly scores: readonly number[];
  readonly k: Float32Array;
  readonly v: Float32Array;
  readonly dOut: Float32Array;
  readonly d: number;
}

/** Computes out of the row by the definition. */
export function computeAttentionRow(row: AttentionRow): Float64Array {
  return weightedSum(softmaxWeights(row), row.v, row.d);
}

/** Computes dq of the row: scale · Σ pⱼ (dpⱼ − Σ p dp) kⱼ. */
export function computeGradientRow(row: AttentionRow): Float64Array {
  const weights = softmaxWeights(row);
  const dWeights = weights.map((_, key) => {
    let sum = 0;
    for (let c = 0; c < row.d; c++) sum += row.dOut[c]! * row.v[key * row.d + c]!;
    return sum;
  });
  const delta = weights.reduce((sum, weight, key) => sum + weight * dWeights[key]!, 0);
  const dScores = weights.map((weight, key) => weight * (dWeights[key]! - delta) * row.d ** -0.5);
  return weightedSum(dScores, row.k, row.d);
}

/** Returns ‖x − ref‖ / ‖ref‖, or NaN if any number is NaN. */
export function relativeError(x: ArrayLike<number>, ref: ArrayLike<number>): number {
  if (x.length !== ref.length) throw new Error(`relativeError: expected ${ref.length} numbers, received ${x.length}`);
  let [squaredDifference, squaredNorm] = [0, 0];
  for (let i = 0; i < ref.length; i++) {
    squaredDifference += (x[i]! - ref[i]!) ** 2;
    squaredNorm += ref[i]! ** 2;
  }
  return Math.sqrt(squaredDifference / squaredNorm);
}

function softmaxWeights({ scores }: AttentionRow): number[] {
  const max = scores.reduce((maxSoFar, score) => Math.max(maxSoFar, score), -Infinity);
  const exponentials = scores.map((score) => Math.exp(score - max));
  const sum = exponentials.reduce((total, x) => total + x, 0);
  return exponentials.map((x) => x / sum);
}

function weightedSum(weights: readonly number[], rows: Float32Array, d: number): Float64Array {
  const out = new Float64Array(d);
  for (const [key, weight] of weights.entries()) {
    for (let c = 0; c < d; c++) out[c] = out[c]! + weight * rows[key * d + c]!;
  }
  return out;
}
