import {
  attentionOracle,
  checkMeasurements,
  type ErrorSum,
  errorSum,
  type Extent,
  integer,
  measureExtent,
  type Measurement,
  mergeErrorSums,
  normals,
  onWorld,
  perturbed,
  poisoned,
  uniforms,
} from "@mosaic/conformance";
import { world } from "@mosaic/collectives-local";
import { attention, type Context, type DType, fromArray, local, masks, noGrad, scope, type Tensor } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { type CacheSequence, KvCache } from "../../src/index.ts";

// Random steps of a cache: batches of several sequences and tokens, forks, truncation, new and disposed sequences; each attention beside
// float64, and held to what the device's own kernel makes of all keys at once.

export interface DecodingTrial {
  readonly ranks: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headSize: number;
  readonly blockSize: number;
  readonly dtype: "float32" | "bfloat16";
  readonly slidingWindow?: number;
  readonly steps: number;
  readonly seed: number;
}

/** A token is a number: its query, key and value follow from it. */
type Token = number;

interface Sequence {
  readonly cached: CacheSequence;
  tokens: readonly Token[];
  /** Tokens of the last step, which speculation may reject. */
  proposed: number;
}

interface StepErrors {
  readonly measured: ErrorSum;
  readonly local: ErrorSum;
  readonly expected: Extent;
  readonly lse: number;
  readonly values: Float32Array;
}

/** Every rank makes the same choices. Throws if an error is too large, or ranks differ in a bit. */
export async function checkDecoding(trial: DecodingTrial): Promise<void> {
  const makeWorld = (size: number, { wrapDevice, ...options }: Parameters<Parameters<typeof onWorld>[0]>[1]) =>
    world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });
  const found = await onWorld(makeWorld, { size: trial.ranks, wrapDevice: poisoned }, (ctx) =>
    decode(perturbed(ctx, { completion: trial.seed % 2 === 0 ? "late" : "soon", seed: trial.seed }), trial),
  );
  const { dtype } = trial;
  const ranks = found.map((steps): Measurement => {
    const merged = (name: "measured" | "local") => mergeErrorSums(steps.map((step) => step[name]));
    const extents = steps.map(({ expected }) => expected);
    const mean = Math.sqrt(extents.reduce((sum, each) => sum + each.mean ** 2, 0) / extents.length);
    const expected = { mean, largest: Math.max(...extents.map(({ largest }) => largest)) };
    return {
      trial: JSON.stringify(trial),
      results: { out: { measured: merged("measured"), local: merged("local"), expected, weights: dtype } },
      lse: Math.max(...steps.map(({ lse }) => lse)),
      common: steps
        .map(({ values }) => Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString("base64"))
        .join(),
    };
  });
  checkMeasurements("KvCache", ranks);
}

async function decode(ctx: Context, trial: DecodingTrial): Promise<StepErrors[]> {
  const { numKvHeads, headSize, blockSize, dtype, slidingWindow } = trial;
  const next = uniforms(trial.seed);
  using cache = new KvCache(ctx, {
    ...{ numLayers: 2, numKvHeads, headSize, blockSize, dtype, maxTokens: 4096 },
    ...(slidingWindow !== undefined && { slidingWindow }),
  });
  const sequences: Sequence[] = [];
  const steps: StepErrors[] = [];
  let token = 0;
  for (let step = 0; step < trial.steps; step++) {
    const choice = next();
    const chosen = sequences[integer(next, Math.max(1, sequences.length))];
    if (!chosen || (choice < 0.15 && sequences.length < 6)) {
      sequences.push({ cached: cache.createSequence(), tokens: [], proposed: 0 });
    } else if (choice < 0.25 && sequences.length < 6) {
      sequences.push({ cached: chosen.cached.fork(), tokens: chosen.tokens, proposed: 0 });
    } else if (choice < 0.35) {
      // A window drops what tokens before those of the last step see no more.
      const rejected = integer(next, 1 + (slidingWindow === undefined ? 40 : chosen.proposed));
      chosen.tokens = chosen.tokens.slice(0, Math.max(0, chosen.tokens.length - rejected));
      chosen.cached.truncate(chosen.tokens.length);
      chosen.proposed = 0;
    } else if (choice < 0.4 && sequences.length > 3) {
      chosen.cached.dispose();
      sequences.splice(sequences.indexOf(chosen), 1);
    } else {
      const batch = sequences.filter(() => next() < 0.7);
      const rows = choice < 0.7 ? 1 : choice < 0.9 ? 1 + integer(next, 5) : 1 + integer(next, 60);
      const lengths = choice > 0.8 ? batch.map(() => integer(next, rows + 1)) : batch.map(() => rows);
      if (batch.length === 0) continue;
      for (const [i, sequence] of batch.entries()) {
        sequence.tokens = [...sequence.tokens, ...Array.from({ length: lengths[i]! }, () => token++)];
        sequence.proposed = lengths[i]!;
      }
      steps.push(...(await attendBoth(ctx, cache, { batch, rows, lengths }, trial)));
      for (const { cached, tokens } of batch) {
        if (cached.length !== tokens.length) throw new Error(`length ${cached.length}, not ${tokens.length}`);
      }
    }
  }
  for (const { cached } of sequences) cached.dispose();
  if (cache.freeTokens !== cache.maxTokens)
    throw new Error(`${cache.maxTokens - cache.freeTokens} tokens are not free`);
  return steps;
}

interface Batch {
  readonly batch: readonly Sequence[];
  readonly rows: number;
  readonly lengths: readonly number[];
}

type Operand = "q" | "k" | "v";

const memo = new WeakMap<DecodingTrial, Map<string, unknown>>();

/** Computed once for all ranks and steps of a trial. */
function memoized<T>(trial: DecodingTrial, key: string, compute: () => T): T {
  const known = memo.get(trial) ?? new Map<string, unknown>();
  memo.set(trial, known);
  if (!known.has(key)) known.set(key, compute());
  return known.get(key) as T;
}

/** Heads of some tokens, [H,T,D], zeros where there is padding; layers have other numbers. */
function operand(
  kind: Operand,
  layer: number,
  tokens: readonly Token[],
  rows: number,
  trial: DecodingTrial,
): Float64Array {
  const { numHeads, numKvHeads, headSize, dtype } = trial;
  const heads = kind === "q" ? numHeads : numKvHeads;
  const found = new Float64Array(heads * rows * headSize);
  for (const [row, token] of tokens.entries()) {
    const seed = ((token * 2 + layer) * 3 + "qkv".indexOf(kind)) * 7919 + trial.seed;
    const values = memoized(trial, `${kind} ${seed}`, () => normals(heads * headSize, seed, dtype));
    for (let h = 0; h < heads; h++) {
      found.set(values.subarray(h * headSize, (h + 1) * headSize), (h * rows + row) * headSize);
    }
  }
  return found;
}

const tensorOf = (ctx: Context, values: readonly Float64Array[], shape: readonly number[], dtype: DType): Tensor => {
  const all = new Float32Array(values.reduce((sum, each) => sum + each.length, 0));
  let offset = 0;
  for (const each of values) {
    all.set(each, offset);
    offset += each.length;
  }
  return fromArray(ctx, all, [values.length, ...shape], { dtype });
};

/** Both layers, each sequence beside the oracle. */
async function attendBoth(ctx: Context, cache: KvCache, { batch, rows, lengths }: Batch, trial: DecodingTrial) {
  const { numHeads, numKvHeads, headSize, dtype, slidingWindow } = trial;
  const steps: StepErrors[] = [];
  for (const index of [0, 1]) {
    const layer = cache.layer(
      index,
      batch.map(({ cached }) => cached),
      { lengths },
    );
    const fresh = (kind: Operand): Tensor => {
      const heads = kind === "q" ? numHeads : numKvHeads;
      const values = batch.map(({ tokens }, i) =>
        operand(kind, index, tokens.slice(tokens.length - lengths[i]!), rows, trial),
      );
      return tensorOf(ctx, values, [heads, rows, headSize], dtype);
    };
    using out = noGrad(() =>
      scope(() => {
        layer.append(fresh("k"), fresh("v"));
        return layer.attend(fresh("q"));
      }),
    );
    const values = await out.read();
    for (const [i, { tokens }] of batch.entries()) {
      const count = lengths[i]!;
      const own = values.subarray(i * numHeads * rows * headSize, (i + 1) * numHeads * rows * headSize);
      const [found, padding] = rowsOf(own, { heads: numHeads, rows, count, headSize });
      if (padding.some((value) => value !== 0)) throw new Error("a row of padding is not 0");
      if (count === 0) continue;
      const [q, k, v] = [
        operand("q", index, tokens.slice(tokens.length - count), count, trial),
        operand("k", index, tokens, tokens.length, trial),
        operand("v", index, tokens, tokens.length, trial),
      ] as const;
      const first = tokens.length - count;
      const sizes = { batch: 1, numHeads, numKvHeads, queries: count, keys: tokens.length, headDim: headSize };
      const maskMod = (query: number, key: number) =>
        key <= first + query && (slidingWindow === undefined || key > first + query - slidingWindow);
      const expected = memoized(trial, `${index} ${count} ${tokens.join()}`, () =>
        attentionOracle({ ...sizes, scale: headSize ** -0.5, maskMod, q, k, v }),
      );
      const mask = slidingWindow === undefined ? masks.causal() : masks.slidingWindow(slidingWindow);
      using localOut = scope(() => {
        const qTensor = tensorOf(ctx, [q], [numHeads, count, headSize], dtype);
        const [kTensor, vTensor] = [k, v].map((x) => tensorOf(ctx, [x], [numKvHeads, tokens.length, headSize], dtype));
        return attention(ctx, qTensor, kTensor!, vTensor!, { backend: local(), mask });
      });
      steps.push({
        measured: errorSum(found, expected.out),
        local: errorSum(await localOut.read(), expected.out),
        expected: measureExtent(expected.out),
        lse: expected.lse.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0),
        values: found,
      });
    }
  }
  return steps;
}

/** The rows of tokens, and those of padding. */
function rowsOf(
  values: Float32Array,
  { heads, rows, count, headSize }: { heads: number; rows: number; count: number; headSize: number },
): readonly [Float32Array, Float32Array] {
  const found = new Float32Array(heads * count * headSize);
  const padding = new Float32Array(heads * (rows - count) * headSize);
  for (let h = 0; h < heads; h++) {
    const head = values.subarray(h * rows * headSize, (h + 1) * rows * headSize);
    found.set(head.subarray(0, count * headSize), h * count * headSize);
    padding.set(head.subarray(count * headSize), h * (rows - count) * headSize);
  }
  return [found, padding];
}
