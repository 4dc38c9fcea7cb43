import {
  attentionOracle,
  checkMeasurements,
  type ErrorSum,
  computeErrorSum,
  type ValueMagnitude,
  integer,
  measureMagnitude,
  type Measurement,
  mergeErrorSums,
  normals,
  runOnWorld,
  perturbContext,
  poisonMemory,
  uniforms,
} from "@mosaic/conformance";
import { world } from "@mosaic/collectives-local";
import { attention, type Context, type DType, fromArray, local, masks, noGrad, scope, type Tensor } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { type CacheSequence, KvCache } from "../../src/index.ts";

// Random operations on a cache: steps with batches of several sequences and tokens, forks, truncation, new and disposed
// sequences. The error of each attention against float64 is compared with that of the device's own kernel on all keys
// at once.

export interface DecodingTrial {
  readonly ranks: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly blockSize: number;
  readonly dtype: "float32" | "bfloat16";
  readonly slidingWindow?: number;
  readonly steps: number;
  readonly seed: number;
}

/** A token is a number that determines its query, key and value. */
type Token = number;

interface Sequence {
  readonly cacheSequence: CacheSequence;
  tokens: readonly Token[];
  /** Number of tokens of the last step, which speculative decoding may reject. */
  numProposed: number;
}

interface StepErrors {
  readonly measuredError: ErrorSum;
  readonly localError: ErrorSum;
  readonly expected: ValueMagnitude;
  readonly lse: number;
  readonly values: Float32Array;
}

/** Every rank makes the same choices. Throws if an error is too large, or if ranks differ in any bit. */
export async function checkDecoding(trial: DecodingTrial): Promise<void> {
  const createWorld = (size: number, { wrapDevice, ...options }: Parameters<Parameters<typeof runOnWorld>[0]>[1]) =>
    world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });
  const stepsByRank = await runOnWorld(createWorld, { size: trial.ranks, wrapDevice: poisonMemory }, (ctx) =>
    decode(perturbContext(ctx, { completion: trial.seed % 2 === 0 ? "late" : "soon", seed: trial.seed }), trial),
  );
  const { dtype } = trial;
  const ranks = stepsByRank.map((steps): Measurement => {
    const mergeErrors = (name: "measuredError" | "localError") => mergeErrorSums(steps.map((step) => step[name]));
    const magnitudes = steps.map(({ expected }) => expected);
    const mean = Math.sqrt(magnitudes.reduce((sum, each) => sum + each.mean ** 2, 0) / magnitudes.length);
    const expected = { mean, maxMagnitude: Math.max(...magnitudes.map(({ maxMagnitude }) => maxMagnitude)) };
    return {
      trial: JSON.stringify(trial),
      results: {
        out: {
          measuredError: mergeErrors("measuredError"),
          localError: mergeErrors("localError"),
          expected,
          weightDtype: dtype,
        },
      },
      lse: Math.max(...steps.map(({ lse }) => lse)),
      commonDigest: steps
        .map(({ values }) => Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString("base64"))
        .join(),
    };
  });
  checkMeasurements("KvCache", ranks);
}

async function decode(ctx: Context, trial: DecodingTrial): Promise<StepErrors[]> {
  const { numKvHeads, headDim, blockSize, dtype, slidingWindow } = trial;
  const nextUniform = uniforms(trial.seed);
  using cache = new KvCache(ctx, {
    ...{ numLayers: 2, numKvHeads, headDim, blockSize, dtype, maxTokens: 4096 },
    ...(slidingWindow !== undefined && { slidingWindow }),
  });
  const sequences: Sequence[] = [];
  const steps: StepErrors[] = [];
  let token = 0;
  for (let step = 0; step < trial.steps; step++) {
    const operationChoice = nextUniform();
    const chosenSequence = sequences[integer(nextUniform, Math.max(1, sequences.length))];
    if (!chosenSequence || (operationChoice < 0.15 && sequences.length < 6)) {
      sequences.push({ cacheSequence: cache.createSequence(), tokens: [], numProposed: 0 });
    } else if (operationChoice < 0.25 && sequences.length < 6) {
      sequences.push({
        cacheSequence: chosenSequence.cacheSequence.fork(),
        tokens: chosenSequence.tokens,
        numProposed: 0,
      });
    } else if (operationChoice < 0.35) {
      // A window drops keys that are visible only to tokens before those of the last step.
      const numRejected = integer(nextUniform, 1 + (slidingWindow === undefined ? 40 : chosenSequence.numProposed));
      chosenSequence.tokens = chosenSequence.tokens.slice(0, Math.max(0, chosenSequence.tokens.length - numRejected));
      chosenSequence.cacheSequence.truncate(chosenSequence.tokens.length);
      chosenSequence.numProposed = 0;
    } else if (operationChoice < 0.4 && sequences.length > 3) {
      chosenSequence.cacheSequence.dispose();
      sequences.splice(sequences.indexOf(chosenSequence), 1);
    } else {
      const batch = sequences.filter(() => nextUniform() < 0.7);
      const rows =
        operationChoice < 0.7 ? 1 : operationChoice < 0.9 ? 1 + integer(nextUniform, 5) : 1 + integer(nextUniform, 60);
      const lengths = operationChoice > 0.8 ? batch.map(() => integer(nextUniform, rows + 1)) : batch.map(() => rows);
      if (batch.length === 0) continue;
      for (const [i, sequence] of batch.entries()) {
        sequence.tokens = [...sequence.tokens, ...Array.from({ length: lengths[i]! }, () => token++)];
        sequence.numProposed = lengths[i]!;
      }
      steps.push(...(await attendCachedAndLocal(ctx, cache, { batch, rows, lengths }, trial)));
      for (const { cacheSequence: cached, tokens } of batch) {
        if (cached.length !== tokens.length) throw new Error(`length ${cached.length}, not ${tokens.length}`);
      }
    }
  }
  for (const { cacheSequence: cached } of sequences) cached.dispose();
  if (cache.freeTokens !== cache.maxTokens)
    throw new Error(`${cache.maxTokens - cache.freeTokens} tokens are not free`);
  return steps;
}

interface Batch {
  readonly batch: readonly Sequence[];
  readonly rows: number;
  readonly lengths: readonly number[];
}

type OperandKind = "q" | "k" | "v";

const cachedValues = new WeakMap<DecodingTrial, Map<string, unknown>>();

/** Returns a cached value, which is computed once for all ranks and steps of a trial. */
function getOrCompute<T>(trial: DecodingTrial, key: string, compute: () => T): T {
  const trialValues = cachedValues.get(trial) ?? new Map<string, unknown>();
  cachedValues.set(trial, trialValues);
  if (!trialValues.has(key)) trialValues.set(key, compute());
  return trialValues.get(key) as T;
}

/** Generates the heads of some tokens, [H,T,D], with zeros in padding. Layers have different numbers. */
function generateOperand(
  kind: OperandKind,
  layer: number,
  tokens: readonly Token[],
  rows: number,
  trial: DecodingTrial,
): Float64Array {
  const { numHeads, numKvHeads, headDim, dtype } = trial;
  const heads = kind === "q" ? numHeads : numKvHeads;
  const operandValues = new Float64Array(heads * rows * headDim);
  for (const [row, token] of tokens.entries()) {
    const seed = ((token * 2 + layer) * 3 + "qkv".indexOf(kind)) * 7919 + trial.seed;
    const values = getOrCompute(trial, `${kind} ${seed}`, () => normals(heads * headDim, seed, dtype));
    for (let h = 0; h < heads; h++) {
      operandValues.set(values.subarray(h * headDim, (h + 1) * headDim), (h * rows + row) * headDim);
    }
  }
  return operandValues;
}

const createTensor = (
  ctx: Context,
  values: readonly Float64Array[],
  shape: readonly number[],
  dtype: DType,
): Tensor => {
  const concatenatedValues = new Float32Array(values.reduce((sum, each) => sum + each.length, 0));
  let offset = 0;
  for (const sampleValues of values) {
    concatenatedValues.set(sampleValues, offset);
    offset += sampleValues.length;
  }
  return fromArray(ctx, concatenatedValues, [values.length, ...shape], { dtype });
};

/** Runs both layers, and measures the errors of each sequence against the oracle. */
async function attendCachedAndLocal(
  ctx: Context,
  cache: KvCache,
  { batch, rows, lengths }: Batch,
  trial: DecodingTrial,
) {
  const { numHeads, numKvHeads, headDim, dtype, slidingWindow } = trial;
  const steps: StepErrors[] = [];
  for (const index of [0, 1]) {
    const layer = cache.layer(
      index,
      batch.map(({ cacheSequence: cached }) => cached),
      { lengths },
    );
    const createOperandTensor = (kind: OperandKind): Tensor => {
      const heads = kind === "q" ? numHeads : numKvHeads;
      const values = batch.map(({ tokens }, i) =>
        generateOperand(kind, index, tokens.slice(tokens.length - lengths[i]!), rows, trial),
      );
      return createTensor(ctx, values, [heads, rows, headDim], dtype);
    };
    using out = noGrad(() =>
      scope(() => {
        layer.append(createOperandTensor("k"), createOperandTensor("v"));
        return layer.attend(createOperandTensor("q"));
      }),
    );
    const values = await out.read();
    for (const [i, { tokens }] of batch.entries()) {
      const count = lengths[i]!;
      const sampleOutput = values.subarray(i * numHeads * rows * headDim, (i + 1) * numHeads * rows * headDim);
      const [validRows, padding] = splitValidRows(sampleOutput, { heads: numHeads, rows, count, headDim });
      if (padding.some((value) => value !== 0)) throw new Error("a row of padding is not 0");
      if (count === 0) continue;
      const [q, k, v] = [
        generateOperand("q", index, tokens.slice(tokens.length - count), count, trial),
        generateOperand("k", index, tokens, tokens.length, trial),
        generateOperand("v", index, tokens, tokens.length, trial),
      ] as const;
      const firstNewToken = tokens.length - count;
      const sizes = { batch: 1, numHeads, numKvHeads, queries: count, keys: tokens.length, headDim };
      const maskMod = (query: number, key: number) =>
        key <= firstNewToken + query && (slidingWindow === undefined || key > firstNewToken + query - slidingWindow);
      const expected = getOrCompute(trial, `${index} ${count} ${tokens.join()}`, () =>
        attentionOracle({ ...sizes, scale: headDim ** -0.5, maskMod, q, k, v }),
      );
      const mask = slidingWindow === undefined ? masks.causal() : masks.slidingWindow(slidingWindow);
      using localOut = scope(() => {
        const qTensor = createTensor(ctx, [q], [numHeads, count, headDim], dtype);
        const [kTensor, vTensor] = [k, v].map((x) =>
          createTensor(ctx, [x], [numKvHeads, tokens.length, headDim], dtype),
        );
        return attention(ctx, qTensor, kTensor!, vTensor!, { backend: local(), mask });
      });
      steps.push({
        measuredError: computeErrorSum(validRows, expected.out),
        localError: computeErrorSum(await localOut.read(), expected.out),
        expected: measureMagnitude(expected.out),
        lse: expected.lse.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0),
        values: validRows,
      });
    }
  }
  return steps;
}

/** Splits the rows into those of tokens and those of padding. */
function splitValidRows(
  values: Float32Array,
  { heads, rows, count, headDim }: { heads: number; rows: number; count: number; headDim: number },
): readonly [Float32Array, Float32Array] {
  const validRows = new Float32Array(heads * count * headDim);
  const padding = new Float32Array(heads * (rows - count) * headDim);
  for (let h = 0; h < heads; h++) {
    const head = values.subarray(h * rows * headDim, (h + 1) * rows * headDim);
    validRows.set(head.subarray(0, count * headDim), h * count * headDim);
    padding.set(head.subarray(count * headDim), h * (rows - count) * headDim);
  }
  return [validRows, padding];
}
