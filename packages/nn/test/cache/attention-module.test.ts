import {
  type Context,
  fromArray,
  masks,
  MultiAxisAttention,
  noGrad,
  type PlacementName,
  shard,
  type Tensor,
  unshard,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { type CacheSequence, KvCache, RMSNorm, RotaryEmbedding } from "../../src/index.ts";
import { maxDifference, generateNumbers } from "../reference/numbers.ts";
import { onMesh } from "../reference/world.ts";

// Modules that decode with a cache, compared with the same module on the whole sequence at once, on one rank.

interface Model {
  readonly embedDim: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly size: number;
  readonly isNormed?: boolean;
  readonly slidingWindow?: number;
  readonly dtype?: "float32" | "bfloat16";
}

function createModule(
  ctx: Context,
  model: Model,
  options: Partial<ConstructorParameters<typeof MultiAxisAttention>[1]>,
) {
  const { embedDim, heads, kvHeads, size, isNormed, slidingWindow, dtype = "float32" } = model;
  const norm = () => new RMSNorm(ctx, size, { dtype });
  return new MultiAxisAttention(ctx, {
    ...{ embedDim, numHeads: heads, numKvHeads: kvHeads, headDim: size, attentionAxis: 1, dtype },
    ...(slidingWindow === undefined ? { causal: true } : { mask: masks.slidingWindow(slidingWindow) }),
    ...(isNormed && { qNorm: norm(), kNorm: norm() }),
    positions: new RotaryEmbedding(size),
    ...options,
  });
}

const createEmbeddings = (length: number, embedDim: number, seed: number): number[] =>
  Array.from(generateNumbers(length * embedDim, seed));

async function attendAtOnce(model: Model, length: number, seed: number): Promise<number[]> {
  const { embedDim, dtype = "float32" } = model;
  const [rows] = await onMesh({ sp: 1 }, async (ctx) => {
    using attn = createModule(ctx, model, {});
    using x = fromArray(ctx, createEmbeddings(length, embedDim, seed), [1, length, embedDim], { dtype });
    using out = attn.forward(x);
    return Array.from(await out.read());
  });
  return rows!;
}

const model: Model = { embedDim: 32, heads: 4, kvHeads: 2, size: 8 };

describe("a prompt in sharded chunks, then token by token, matches attention over the whole sequence", () => {
  test.each([
    [1, "contiguous", model, 1e-5],
    [2, "zigzag", model, 1e-5],
    [3, "striped", { ...model, isNormed: true }, 1e-5],
    [4, "contiguous", { ...model, isNormed: true, kvHeads: 4 }, 1e-5],
    [5, "zigzag", { ...model, slidingWindow: 11 }, 1e-5],
    [6, "contiguous", { ...model, slidingWindow: 30, isNormed: true }, 1e-5],
    [7, "striped", { ...model, slidingWindow: 3 }, 1e-5],
    [8, "zigzag", { ...model, kvHeads: 1 }, 1e-5],
    // One unit in the last place of an output, because sums in another order may round to the adjacent number.
    [2, "contiguous", { ...model, dtype: "bfloat16" }, 2 ** -7],
  ] as const)("%d ranks, %s, %o", async (sp, placement, modelCase, tolerance) => {
    const { embedDim, kvHeads, size, slidingWindow, dtype = "float32" }: Model = modelCase;
    const length = 77;
    const expected = await attendAtOnce(modelCase, length, 7);
    await onMesh({ sp }, async (ctx) => {
      using attn = createModule(ctx, modelCase, { backend: "ring", placement });
      using cache = new KvCache(ctx, {
        ...{ numKvHeads: kvHeads, headDim: size, maxTokens: 1024, blockSize: 4, dtype },
        ...(slidingWindow !== undefined && { slidingWindow }),
      });
      using sequence = cache.createSequence();
      using x = fromArray(ctx, createEmbeddings(length, embedDim, 7), [1, length, embedDim], { dtype });
      const actual: number[] = [];
      for (const [i, count] of [33, 31, 1, 1, 3, 1, 7].entries()) {
        const isSharded = i < 2;
        using rows = x.slice(1, sequence.length, sequence.length + count);
        actual.push(
          ...(await forwardChunk(ctx, { attn, cache, sequence, rows, placement: isSharded ? placement : null })),
        );
      }
      expect(actual.length).toBe(length * embedDim);
      expect(maxDifference(actual, expected)).toBeLessThan(tolerance);
    });
  });
});

interface Chunk {
  readonly attn: MultiAxisAttention;
  readonly cache: KvCache;
  readonly sequence: CacheSequence;
  readonly rows: Tensor;
  /** Placement of the rows; null: not sharded. */
  readonly placement: PlacementName | null;
}

/** Returns the output of the whole chunk. */
async function forwardChunk(ctx: Context, { attn, cache, sequence, rows, placement }: Chunk): Promise<Float32Array> {
  const count = rows.shape[1]!;
  const layer = cache.layer(0, [sequence], { sharded: placement !== null });
  if (placement === null) {
    using contiguousRows = rows.contiguous();
    using out = noGrad(() => attn.forward(contiguousRows, { cache: layer }));
    return await out.read();
  }
  using localRows = shard(ctx, rows, 1, { placement });
  using out = noGrad(() => attn.forward(localRows, { cache: layer, sequenceLength: count }));
  using fullOutput = unshard(ctx, out, 1, { placement, length: count });
  return await fullOutput.read();
}

test.each([1, 2, 3])(
  "a padded batch of prompts and its next steps match attention over whole sequences: %d ranks",
  async (sp) => {
    const { embedDim, kvHeads, size } = model;
    const lengths = [5, 12, 9];
    const steps = 3;
    const expected = await Promise.all(lengths.map((length, i) => attendAtOnce(model, length + steps, 11 + i)));
    await onMesh({ sp }, async (ctx) => {
      using attn = createModule(ctx, model, { backend: "local" });
      using cache = new KvCache(ctx, { numKvHeads: kvHeads, headDim: size, maxTokens: 256, blockSize: 4 });
      const sequences = lengths.map(() => cache.createSequence());
      const sliceRows = (sample: number, start: number, end: number): number[] =>
        createEmbeddings(lengths[sample]! + steps, embedDim, 11 + sample).slice(start * embedDim, end * embedDim);
      const longest = Math.max(...lengths);
      const paddedPrompts = lengths.flatMap((length, i) => [
        ...sliceRows(i, 0, length),
        ...new Array<number>((longest - length) * embedDim).fill(9),
      ]);
      using prompts = fromArray(ctx, paddedPrompts, [3, longest, embedDim]);
      using promptOutput = noGrad(() => attn.forward(prompts, { cache: cache.layer(0, sequences, { lengths }) }));
      const values = await promptOutput.read();
      const actualRows = lengths.map((length, i) =>
        Array.from(values.subarray(i * longest * embedDim, (i * longest + length) * embedDim)),
      );
      expect(sequences.map(({ length }) => length)).toEqual(lengths);
      for (let step = 0; step < steps; step++) {
        const tokens = lengths.flatMap((length, i) => sliceRows(i, length + step, length + step + 1));
        using x = fromArray(ctx, tokens, [3, 1, embedDim]);
        using out = noGrad(() => attn.forward(x, { cache: cache.layer(0, sequences) }));
        const rows = await out.read();
        for (const [i, sampleRows] of actualRows.entries())
          sampleRows.push(...rows.subarray(i * embedDim, (i + 1) * embedDim));
      }
      for (const [i, sampleRows] of actualRows.entries())
        expect(maxDifference(sampleRows, expected[i]!)).toBeLessThan(1e-5);
    });
  },
);

test("two sharded prompts, the second of them forked, match attention over whole sequences", async () => {
  const { embedDim, kvHeads, size } = model;
  const expected = await Promise.all([attendAtOnce(model, 30, 3), attendAtOnce(model, 30, 4)]);
  await onMesh({ sp: 3 }, async (ctx) => {
    using attn = createModule(ctx, model, { backend: "ring" });
    using cache = new KvCache(ctx, { numKvHeads: kvHeads, headDim: size, maxTokens: 256, blockSize: 4 });
    const sequences = [cache.createSequence(), cache.createSequence()];
    const fullInputs = [3, 4].map((seed) => fromArray(ctx, createEmbeddings(30, embedDim, seed), [1, 30, embedDim]));
    const forwardSampleChunk = async (sample: number, start: number, end: number): Promise<Float32Array> => {
      using rows = fullInputs[sample]!.slice(1, start, end);
      return forwardChunk(ctx, { attn, cache, sequence: sequences[sample]!, rows, placement: "contiguous" });
    };
    await forwardSampleChunk(0, 0, 10);
    await forwardSampleChunk(1, 0, 13);
    using remainingSequence = sequences[1]!;
    sequences[1] = remainingSequence.fork();
    await forwardSampleChunk(0, 10, 20);
    await forwardSampleChunk(1, 13, 20);
    // A batch whose samples start at the same position, with blocks on different ranks.
    const batchValues = [0, 1].flatMap((i) => createEmbeddings(30, embedDim, 3 + i).slice(20 * embedDim));
    using rows = fromArray(ctx, batchValues, [2, 10, embedDim]);
    using localRows = shard(ctx, rows, 1);
    const layer = cache.layer(0, sequences, { sharded: true });
    using out = noGrad(() => attn.forward(localRows, { cache: layer, sequenceLength: 10 }));
    using fullOutput = unshard(ctx, out, 1, { length: 10 });
    const values = await fullOutput.read();
    for (const [i, sampleExpected] of expected.entries()) {
      const sampleValues = Array.from(values.subarray(i * 10 * embedDim, (i + 1) * 10 * embedDim));
      expect(maxDifference(sampleValues, sampleExpected.slice(20 * embedDim))).toBeLessThan(1e-5);
    }
    expect(remainingSequence.length).toBe(13);
  });
});
