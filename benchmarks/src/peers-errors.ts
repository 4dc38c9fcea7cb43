import * as mosaic from "@mosaic/attention";
import { type AttentionProblem, attentionOracle, attentionOracleBackward, normals } from "@mosaic/conformance";
import { type BenchmarkCase, type ResultRow } from "./case.ts";
import { BaselineProcess, BaselineUnsupportedError, sdpaScriptPath } from "./peers.ts";

const [ROWS, HEAD_DIM] = [192, 64];

/** Operands that are hard for attention: factors of normally distributed numbers, and which pairs are visible. */
interface ErrorProblem {
  readonly name: string;
  readonly scale: { readonly q: number; readonly k: number; readonly v: number };
  readonly isVisible: (query: number, key: number) => boolean;
  /** Keys whose k and v are NaN. They are visible to no query. */
  readonly hiddenKeys?: readonly number[];
}

const [denormal, hiddenKeys] = [1e-39, [7, 100, 191]];
const isAlwaysVisible = (): boolean => true;

const problems: readonly ErrorProblem[] = [
  { name: "normal", scale: { q: 1, k: 1, v: 1 }, isVisible: isAlwaysVisible },
  { name: "causal", scale: { q: 1, k: 1, v: 1 }, isVisible: (query, key) => key <= query },
  // Scores of about ±10⁴.
  { name: "large-logits", scale: { q: 1e3, k: 4, v: 1 }, isVisible: isAlwaysVisible },
  { name: "empty-rows", scale: { q: 1, k: 1, v: 1 }, isVisible: (query, key) => query % 3 > 0 && key <= query },
  { name: "denormal", scale: { q: denormal, k: denormal, v: denormal }, isVisible: isAlwaysVisible },
  { name: "nan-unseen", scale: { q: 1, k: 1, v: 1 }, isVisible: (_, key) => !hiddenKeys.includes(key), hiddenKeys },
];

const dtypes = { f32: "float32", bf16: "bfloat16" } as const;
const results = ["out", "dq", "dk", "dv"] as const;
type Results = Readonly<Record<(typeof results)[number], ArrayLike<number>>>;

/** Errors against float64, compared with PyTorch's errors on the same operands. */
export const baselineErrorCases: readonly BenchmarkCase[] = problems.flatMap((problem) =>
  (["f32", "bf16"] as const).map((dtype) => createErrorCase(problem, dtype)),
);

function createErrorCase(problem: ErrorProblem, dtype: keyof typeof dtypes): BenchmarkCase {
  const name = `peer-errors.${dtype}.${problem.name}`;
  return {
    names: [name],
    async run({ python }) {
      using baseline = new BaselineProcess([python!, sdpaScriptPath, "--device", "cpu"]);
      const operands = drawOperands(problem, dtype);
      const expected = computeReference(problem, operands);
      const ownResult = await computeAttention(problem, operands, dtype);
      const baselineResult = await attendByBaseline(baseline, problem, { ...operands, dtype });
      const numbers: Record<string, number> = {};
      for (const result of results) {
        numbers[result] = relativeError(ownResult[result], expected[result]);
        if (baselineResult !== null)
          numbers[`peer_${result}`] = relativeError(baselineResult[result], expected[result]);
      }
      return [createErrorRow(name, numbers)];
    },
  };
}

interface Operands {
  readonly q: Float64Array;
  readonly k: Float64Array;
  readonly v: Float64Array;
  readonly dOut: Float64Array;
}

function drawOperands({ scale, hiddenKeys = [] }: ErrorProblem, dtype: keyof typeof dtypes): Operands {
  const drawValues = (seed: number, factor: number): Float64Array =>
    roundTo(
      normals(ROWS * HEAD_DIM, seed).map((x) => x * factor),
      dtype,
    );
  const [q, k, v, dOut] = [drawValues(1, scale.q), drawValues(2, scale.k), drawValues(3, scale.v), drawValues(4, 1)];
  for (const key of hiddenKeys) {
    for (const rows of [k, v]) rows.fill(NaN, key * HEAD_DIM, (key + 1) * HEAD_DIM);
  }
  return { q, k, v, dOut };
}

/** Rounds to nearest, ties to even. Denormal numbers are kept. */
function roundTo(values: Float64Array, dtype: keyof typeof dtypes): Float64Array {
  const float32Values = Float32Array.from(values);
  if (dtype === "bf16") {
    const bits = new Uint32Array(float32Values.buffer);
    for (const [i, word] of bits.entries()) bits[i] = (word + 0x7fff + ((word >>> 16) & 1)) & 0xffff0000;
  }
  return Float64Array.from(float32Values);
}

function computeReference({ isVisible }: ErrorProblem, { q, k, v, dOut }: Operands): Results {
  const sizes = { batch: 1, numHeads: 1, numKvHeads: 1, queries: ROWS, keys: ROWS, headDim: HEAD_DIM };
  const problem: AttentionProblem = { ...sizes, scale: HEAD_DIM ** -0.5, maskMod: isVisible, q, k, v };
  return { out: attentionOracle(problem).out, ...attentionOracleBackward(problem, dOut) };
}

async function computeAttention(
  { isVisible }: ErrorProblem,
  operands: Operands,
  dtype: keyof typeof dtypes,
): Promise<Results> {
  await using ctx = await mosaic.init({ device: "cpu", rank: 0, worldSize: 1 });
  const shape = [1, 1, ROWS, HEAD_DIM];
  const tensor = (values: Float64Array): mosaic.Tensor =>
    mosaic.fromArray(ctx, values, shape, { dtype: dtypes[dtype] });
  using q = tensor(operands.q);
  using k = tensor(operands.k);
  using v = tensor(operands.v);
  using dOut = tensor(operands.dOut);
  for (const x of [q, k, v]) x.requiresGrad = true;
  const rows = Array.from({ length: ROWS }, (_, query) =>
    Array.from({ length: ROWS }, (_, key) => isVisible(query, key)),
  );
  using out = mosaic.attention(ctx, q, k, v, { backend: mosaic.local(), mask: mosaic.masks.fromDense(rows) });
  out.backward(dOut);
  const [dq, dk, dv] = await Promise.all([q, k, v].map((x) => x.grad!.read()));
  return { out: await out.read(), dq: dq!, dk: dk!, dv: dv! };
}

/** Computes attention by PyTorch. Returns null if none of its backends supports the problem. */
async function attendByBaseline(
  baseline: BaselineProcess,
  { isVisible }: ErrorProblem,
  { q, k, v, dOut, dtype }: Operands & { readonly dtype: string },
): Promise<Results | null> {
  const encode = (values: Float64Array): string => Buffer.from(Float32Array.from(values).buffer).toString("base64");
  const pairs = Uint8Array.from({ length: ROWS * ROWS }, (_, i) => Number(isVisible(Math.floor(i / ROWS), i % ROWS)));
  const requestFields = { n: ROWS, d: HEAD_DIM, dtype, visible: Buffer.from(pairs).toString("base64") };
  const operands = { q: encode(q), k: encode(k), v: encode(v), dOut: encode(dOut), ...requestFields };
  try {
    const response = await baseline.request<Record<string, string>>({ op: "attend", backend: "flash", operands });
    const decodedResults = results.map((result) => {
      const bytes = Buffer.from(response[result]!, "base64");
      return [result, new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4)] as const;
    });
    return Object.fromEntries(decodedResults) as unknown as Results;
  } catch (error) {
    if (error instanceof BaselineUnsupportedError) return null;
    throw error;
  }
}

/** Returns ‖x − reference‖ / ‖reference‖, or ‖x‖ if the reference is 0. */
function relativeError(x: ArrayLike<number>, reference: ArrayLike<number>): number {
  let [squaredDifference, squaredNorm] = [0, 0];
  for (let i = 0; i < reference.length; i++) {
    squaredDifference += (x[i]! - reference[i]!) ** 2;
    squaredNorm += reference[i]! ** 2;
  }
  return Math.sqrt(squaredNorm === 0 ? squaredDifference : squaredDifference / squaredNorm);
}

function createErrorRow(name: string, numbers: Record<string, number>): ResultRow {
  const formatErrors = (prefix: string): string =>
    results.map((result) => `${result} ${(numbers[`${prefix}${result}`] ?? NaN).toExponential(1)}`).join(", ");
  return { case: name, numbers, text: `ours: ${formatErrors("")}   PyTorch: ${formatErrors("peer_")}` };
}
