import {
  attention,
  type Context,
  fromArray,
  full,
  local,
  type Mask,
  masks,
  MultiAxisAttention,
  MultiAxisAttention2D,
  noGrad,
  OutOfMemoryError,
  randn,
  scope,
  type Tensor,
} from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { describe, expect, test, vi } from "vitest";
import { BlockPool } from "../../src/cache/block-pool.ts";
import { BlockTable, extendTables } from "../../src/cache/block-table.ts";
import { type CacheSequence, KvCache, type KvCacheOptions } from "../../src/index.ts";
import { maxDifference, generateNumbers } from "../reference/numbers.ts";
import { onOneRank, onMesh } from "../reference/world.ts";

const [heads, kvHeads, size] = [4, 2, 8];
const shape = { numKvHeads: kvHeads, headDim: size, blockSize: 4 } as const;

const createCache = (ctx: Context, options: Partial<KvCacheOptions> = {}): KvCache =>
  new KvCache(ctx, { ...shape, maxTokens: 64, ...options });
// Returns random keys that are the same on every rank.
// oxlint-disable-next-line max-params -- where, how many, and which
const keys = (ctx: Context, rows: number, batch = 1, stream = 1): Tensor =>
  randn(ctx, [batch, kvHeads, rows, size], { seed: 1, stream });
const queries = (ctx: Context, rows: number, batch = 1): Tensor =>
  randn(ctx, [batch, heads, rows, size], { seed: 1, stream: 0 });

/** Appends random tokens. */
function appendRandom(ctx: Context, cache: KvCache, sequence: CacheSequence, rows: number): void {
  scope(() => cache.layer(0, [sequence]).append(keys(ctx, rows), keys(ctx, rows)));
}

describe("memory of KvCache", () => {
  test("is shared between forks, and the last block is copied on write", () =>
    onOneRank((ctx) => {
      using cache = createCache(ctx);
      using prompt = cache.createSequence();
      appendRandom(ctx, cache, prompt, 10);
      expect(cache.freeTokens).toBe(64 - 12);
      using firstFork = prompt.fork();
      using secondFork = prompt.fork();
      expect(cache.freeTokens).toBe(64 - 12);
      appendRandom(ctx, cache, firstFork, 1);
      expect(cache.freeTokens).toBe(64 - 16);
      appendRandom(ctx, cache, secondFork, 1);
      expect(cache.freeTokens).toBe(64 - 20);
      // The block is no longer shared.
      appendRandom(ctx, cache, prompt, 1);
      expect(cache.freeTokens).toBe(64 - 20);
      firstFork.dispose();
      firstFork.dispose();
      expect(cache.freeTokens).toBe(64 - 16);
      secondFork.truncate(8);
      expect(cache.freeTokens).toBe(64 - 12);
    }));

  test("rejects tokens that do not fit, and keeps those it stores", () =>
    onOneRank(async (ctx) => {
      using cache = createCache(ctx, { maxTokens: 16 });
      using sequence = cache.createSequence();
      using otherSequence = cache.createSequence();
      using q = queries(ctx, 1);
      appendRandom(ctx, cache, sequence, 10);
      using outputBefore = cache.layer(0, [sequence]).attend(q);
      const error = "KvCache: append: expected 2 free blocks of 4 tokens, received 1 of 4 blocks free";
      expect(() => appendRandom(ctx, cache, sequence, 7)).toThrow(OutOfMemoryError);
      expect(() => appendRandom(ctx, cache, sequence, 7)).toThrow(error);
      // If one sequence of a batch fails, no sequence stores its tokens.
      using k = keys(ctx, 4, 2);
      expect(() => cache.layer(0, [sequence, otherSequence]).append(k, k)).toThrow(OutOfMemoryError);
      expect([sequence.length, otherSequence.length, cache.freeTokens]).toEqual([10, 0, 4]);
      using outputAfter = cache.layer(0, [sequence]).attend(q);
      expect(await outputAfter.read()).toEqual(await outputBefore.read());
      appendRandom(ctx, cache, sequence, 6);
      expect(cache.freeTokens).toBe(0);
      sequence.truncate(4);
      cache.layer(0, [sequence, otherSequence]).append(k, k);
      expect(cache.freeTokens).toBe(4);
    }));

  test("rejects queries that attend to tokens that the sliding window has dropped", () =>
    onOneRank(async (ctx) => {
      using cache = createCache(ctx, { slidingWindow: 6 });
      using sequence = cache.createSequence();
      appendRandom(ctx, cache, sequence, 9);
      using before = cache.layer(0, [sequence]).attend(queries(ctx, 3));
      appendRandom(ctx, cache, sequence, 0); // drops positions 0 to 3
      const layer = cache.layer(0, [sequence]);
      expect(() => layer.attend(queries(ctx, 3))).toThrow(
        "KvCache: attend: expected queries that attend to keys from position 4, because the sliding window has dropped the tokens before it, received a query at position 6 that attends to the key at position 1; pass only the queries of the tokens that were appended last",
      );
      // With a window of 3, the same queries attend to kept keys only. The last query attends to the last 3 of 9 keys.
      using after = layer.attend(queries(ctx, 3), { mask: masks.slidingWindow(3) });
      expect(after.shape).toEqual(before.shape);
    }));

  test("drops blocks outside the sliding window, but none that are visible after a small truncate", () =>
    onOneRank((ctx) => {
      using cache = createCache(ctx, { slidingWindow: 6 });
      using sequence = cache.createSequence();
      for (let i = 0; i < 200; i++) appendRandom(ctx, cache, sequence, 1);
      // The keys from position 194 on are visible to the token at 199.
      expect(cache.freeTokens).toBe(64 - 8);
      appendRandom(ctx, cache, sequence, 9);
      sequence.truncate(200);
      expect(() => sequence.truncate(190)).toThrow(
        /at least 197, because the sliding window has dropped the tokens before position 192/,
      );
    }));

  test.each([1, 3, 4])("is divided evenly over %d ranks for every sequence, up to one block", (ranks) => {
    const cache = {
      ...{ pool: new BlockPool(ranks, 1000), blockSize: 8, numLayers: 1, slidingWindow: undefined, revision: 0 },
      copyBlock: () => {},
    };
    const tables = Array.from({ length: 5 }, () => new BlockTable(cache));
    for (let step = 0; step < 40; step++) {
      extendTables(
        0,
        tables,
        tables.map((_, i) => i + 1),
      );
    }
    for (const [i, table] of tables.entries()) {
      const length = 40 * (i + 1);
      const blocksByRank = Array.from({ length: ranks }, (_, rank) =>
        table.listRankRows(rank, 0, length).reduce((sum, { length: rows }) => sum + rows, 0),
      );
      expect(blocksByRank.reduce((sum, rows) => sum + rows)).toBe(length);
      for (const rows of blocksByRank) expect(Math.abs(rows - length / ranks)).toBeLessThanOrEqual(8);
    }
    // A sequence's blocks are adjacent, so that the kernel reads them as one.
    const rows = tables[4]!.listRankRows(0, 0, 200);
    for (const [i, { row }] of rows.slice(1).entries()) expect(row).toBe(rows[i]!.row + 8);
  });

  test("does not grow over thousands of steps", () =>
    onOneRank(async (ctx) => {
      using cache = createCache(ctx, { slidingWindow: 16 });
      using sequence = cache.createSequence();
      const step = (): void => {
        using draft = sequence.fork();
        scope(() => {
          const layer = cache.layer(0, [sequence, draft]);
          layer.append(keys(ctx, 2, 2), keys(ctx, 2, 2));
          layer.attend(queries(ctx, 2, 2));
          sequence.truncate(sequence.length - 1);
        });
      };
      for (let i = 0; i < 100; i++) step();
      await ctx.device.stream.synchronize();
      const { allocated, reserved } = ctx.device.memory();
      for (let i = 0; i < 3000; i++) step();
      await ctx.device.stream.synchronize();
      expect(ctx.device.memory()).toMatchObject({ allocated, reserved });
    }));

  test("is bytesPerToken for each token, and is freed on dispose", () =>
    onOneRank((ctx) => {
      const allocatedBefore = ctx.device.memory().allocated;
      using cache = createCache(ctx, { numLayers: 3, maxTokens: 100, blockSize: 8, dtype: "bfloat16" });
      expect(cache.bytesPerToken).toBe(3 * kvHeads * 2 * size * 2);
      expect(cache.maxTokens).toBe(104);
      expect(ctx.device.memory().allocated - allocatedBefore).toBe(104 * cache.bytesPerToken);
      cache.dispose();
      expect(ctx.device.memory().allocated).toBe(allocatedBefore);
    }));
});

test.each([1, 2, 4])("a step on %d ranks sends only each rank's attention states to the others", async (ranks) => {
  await onMesh({ sp: ranks }, async (ctx) => {
    using cache = createCache(ctx);
    using a = cache.createSequence();
    using b = cache.createSequence();
    appendRandom(ctx, cache, a, 9);
    const layer = cache.layer(0, [a, b]);
    scope(() => layer.append(keys(ctx, 3, 2), keys(ctx, 3, 2)));
    await ctx.device.stream.synchronize();
    const trafficBefore = ctx.world.traffic();
    using q = queries(ctx, 3, 2);
    using out = layer.attend(q);
    await out.read();
    const { bytesSent, bytesReceived } = ctx.world.traffic();
    const expected = (ranks - 1) * 2 * 3 * heads * (size + 1) * 4;
    expect([bytesSent - trafficBefore.bytesSent, bytesReceived - trafficBefore.bytesReceived]).toEqual([
      expected,
      expected,
    ]);
  });
});

test.each([1, 3])("sinks are added to the denominator once, on %d ranks", async (sp) => {
  await onMesh({ sp }, async (ctx) => {
    using cache = createCache(ctx);
    using sequence = cache.createSequence();
    const rows = 13;
    const [q, k, v] = [heads, kvHeads, kvHeads].map((count, i) =>
      fromArray(ctx, generateNumbers(count * rows * size, i + 1), [1, count, rows, size]),
    ) as [Tensor, Tensor, Tensor];
    using sinks = fromArray(ctx, [0.5, -1, 2, 0], [heads]);
    const layer = cache.layer(0, [sequence]);
    layer.append(k, v);
    using actualOutput = layer.attend(q, { sinks });
    const { out, lse } = attention(ctx, q, k, v, { backend: local(), mask: masks.causal(), returnLse: true });
    const [plainOutput, plainLse] = [await out.read(), await lse.read()];
    const expected = Array.from(plainOutput, (value, i) => {
      const row = Math.floor(i / size);
      const sinkScore = [0.5, -1, 2, 0][Math.floor(row / rows)]!;
      return value / (1 + Math.exp(sinkScore - plainLse[row]!));
    });
    expect(maxDifference(Array.from(await actualOutput.read()), expected)).toBeLessThan(1e-6);
  });
});

test.each([1, 2])(
  "sequences of thousands of tokens, whose keys the kernels split, match local attention: %d ranks",
  async (sp) => {
    await onMesh({ sp }, async (ctx) => {
      using cache = createCache(ctx, { maxTokens: 16_384, blockSize: 64 });
      const lengths = [2500, 70, 3100];
      const sequences = lengths.map(() => cache.createSequence());
      using q = queries(ctx, 2, 3);
      const expected: number[] = [];
      for (const [i, length] of lengths.entries()) {
        using k = keys(ctx, length, 1, 10 + i);
        using v = keys(ctx, length, 1, 20 + i);
        cache.layer(0, [sequences[i]!]).append(k, v);
        using sampleQueries = q.slice(0, i, i + 1);
        using out = attention(ctx, sampleQueries, k, v, { backend: local(), mask: masks.causal() });
        expected.push(...(await out.read()));
      }
      using batchOutput = cache.layer(0, sequences).attend(q);
      expect(maxDifference(Array.from(await batchOutput.read()), expected)).toBeLessThan(1e-6);
    });
  },
);

test.each([
  ["causal, from a later key on", { q0: 0, q1: 4, k0: 4, k1: 6, type: "causal" }],
  ["a band that begins after it ends", { q0: 0, q1: 4, k0: 3, k1: 6, type: "bidirectionalCausal" }],
] as const)("queries to which no key is visible yield 0 under a slice that is %s", async (_, slice) => {
  await onMesh({ sp: 1 }, async (ctx) => {
    using cache = new KvCache(ctx, { numKvHeads: 1, headDim: 8, maxTokens: 64, blockSize: 4 });
    using sequence = cache.createSequence();
    using x = randn(ctx, [1, 1, 6, 8]);
    cache.layer(0, [sequence]).append(x, x);
    using q = x.slice(2, 2, 6).contiguous();
    const mask = masks.fromSlices([slice]);
    using expected = attention(ctx, q, x, x, { mask });
    // The result is likely to reuse this memory.
    full(ctx, [1, 1, 4, 8], 1e6).dispose();
    using out = cache.layer(0, [sequence]).attend(q, { mask });
    const expectedValues = await expected.contiguous().read();
    expect(expectedValues.subarray(0, 8).every((value) => value === 0)).toBe(true);
    expect(maxDifference([...(await out.contiguous().read())], [...expectedValues])).toBeLessThan(1e-6);
  });
});

describe("invalid calls of KvCache", () => {
  test("rejects disposed sequences, sequences of another cache, and duplicates", () =>
    onOneRank((ctx) => {
      using cache = createCache(ctx);
      using otherCache = createCache(ctx);
      using sequence = cache.createSequence();
      const disposedSequence = cache.createSequence();
      disposedSequence.dispose();
      expect(() => cache.layer(0, [sequence, sequence])).toThrow(
        /distinct sequences, received a duplicate sequence; call fork\(\)/,
      );
      expect(() => cache.layer(1, [sequence])).toThrow(/expected a layer from 0 to 0, received 1/);
      expect(() => otherCache.layer(0, [sequence])).toThrow(/expected sequences created by this cache/);
      expect(() => cache.layer(0, [disposedSequence])).toThrow(/a disposed sequence/);
      expect(() => cache.layer(0, [{} as CacheSequence])).toThrow(/a sequence from createSequence\(\) or fork\(\)/);
      expect(() => disposedSequence.length).toThrow(/a disposed sequence/);
      const layer = cache.layer(0, [sequence]);
      sequence.dispose();
      using k = keys(ctx, 1);
      expect(() => layer.append(k, k)).toThrow(/a disposed/);
      const disposedCache = createCache(ctx);
      disposedCache.dispose();
      expect(() => disposedCache.createSequence()).toThrow(/a disposed KvCache/);
    }));

  test("rejects shapes and lengths that do not fit", () =>
    onOneRank((ctx) => {
      using cache = createCache(ctx);
      using sequence = cache.createSequence();
      const layer = cache.layer(0, [sequence]);
      using k = keys(ctx, 2);
      using twoHeadKeys = keys(ctx, 2, 2);
      using q = queries(ctx, 3);
      using wrongHeadQueries = randn(ctx, [1, 3, 2, size]);
      expect(() => layer.append(twoHeadKeys, twoHeadKeys)).toThrow(
        /expected k \[1,2,T,8\] and v \[1,2,T,8\].*received \[2,2,2,8\]/,
      );
      expect(() => layer.append(k, twoHeadKeys)).toThrow(/received \[1,2,2,8\] and \[2,2,2,8\]/);
      expect(() => layer.attend(wrongHeadQueries)).toThrow(/expected q \[1,H,T,8\], H a multiple of 2/);
      expect(() => layer.attend(q)).toThrow(/expected q with at most 0 tokens.*received 3; append/);
      expect(() => cache.layer(0, [sequence], { lengths: [1, 2] })).toThrow(/expected 1 lengths/);
      expect(() => cache.layer(0, [sequence], { lengths: [3] }).append(k, k)).toThrow(
        /lengths\[0\]: expected at most 2/,
      );
      using sinks = randn(ctx, [3]);
      layer.append(k, k);
      using newQueries = queries(ctx, 2);
      expect(() => layer.attend(newQueries, { sinks })).toThrow(
        /sinks: expected shape \[4\], one logit per query head, received \[3\]/,
      );
      expect(() => sequence.truncate(3)).toThrow(/at most 2, the length of the sequence, received 3/);
      expect(() => sequence.truncate(-1)).toThrow(/truncate: length: expected an integer ≥ 0/);
    }));

  test("rejects keys of another device, and stores no rows of an append that fails", () =>
    onOneRank((ctx) => {
      using cache = createCache(ctx);
      using sequence = cache.createSequence();
      const layer = cache.layer(0, [sequence]);
      layer.append(keys(ctx, 2), keys(ctx, 2));
      using otherDevice = cpu({ threads: 1 });
      using foreignKeys = randn(otherDevice, [1, kvHeads, 3, size], { seed: 1 });
      expect(() => layer.append(keys(ctx, 3), foreignKeys)).toThrow(
        /KvCache: append: expected operands on the same device, cpu:0, received an operand on another cpu:0, of another context/,
      );
      const copy = vi.spyOn(ctx.device.kernels, "copy").mockImplementation(() => {
        throw new OutOfMemoryError({ where: "copy" });
      });
      expect(() => layer.append(keys(ctx, 3), keys(ctx, 3))).toThrow(OutOfMemoryError);
      copy.mockRestore();
      expect([sequence.length, cache.freeTokens]).toEqual([2, 60]);
    }));

  test("rejects masks that are not causal or exceed the sliding window", () =>
    onOneRank((ctx) => {
      using cache = createCache(ctx);
      using windowedCache = createCache(ctx, { slidingWindow: 3 });
      using k = keys(ctx, 5);
      using q = queries(ctx, 2);
      for (const testedCache of [cache, windowedCache]) {
        using sequence = testedCache.createSequence();
        const layer = testedCache.layer(0, [sequence]);
        layer.append(k, k);
        expect(() => layer.attend(q, { mask: masks.full() })).toThrow(/expected a causal mask, received "full"/);
        using narrowWindowOutput = layer.attend(q, { mask: masks.slidingWindow(2) });
        expect(narrowWindowOutput.shape).toEqual([1, heads, 2, size]);
        if (testedCache === windowedCache) {
          expect(() => layer.attend(q, { mask: masks.causal() })).toThrow(/within the cache's sliding window of 3/);
        }
      }
    }));

  test("stores no tokens of a module call that it rejects", () =>
    onOneRank((ctx) => {
      using cache = createCache(ctx, { numKvHeads: 2, headDim: 4, numLayers: 2 });
      using sequence = cache.createSequence();
      using attn = new MultiAxisAttention(ctx, { embedDim: 8, numHeads: 2, attentionAxis: 1 });
      using x = randn(ctx, [1, 9, 8]);
      const forward = (layer: number, mask = masks.causal()) =>
        noGrad(() => attn.forward(x, { cache: cache.layer(layer, [sequence]), mask })).dispose();
      expect(() => forward(0, masks.full())).toThrow(/expected a causal mask/);
      expect([sequence.length, cache.freeTokens]).toEqual([0, 64]);
      forward(0);
      expect(() => forward(1, masks.full())).toThrow(/expected a causal mask/);
      expect([cache.layer(0, [sequence]).starts, cache.layer(1, [sequence]).starts]).toEqual([[9], [0]]);
      forward(1);
      expect([sequence.length, cache.freeTokens]).toEqual([9, 52]);
    }));

  test("rejects lengths with sharded new tokens", () =>
    onMesh({ sp: 2 }, (ctx) => {
      using cache = createCache(ctx, { headDim: 8, numKvHeads: 1 });
      using sequence = cache.createSequence();
      const options = { embedDim: 8, numHeads: 1, attentionAxis: 1, causal: true, backend: "ring" } as const;
      using attn = new MultiAxisAttention(ctx, options);
      using x = randn(ctx, [1, 3, 8]);
      const layer = cache.layer(0, [sequence], { sharded: true, lengths: [2] });
      expect(() => noGrad(() => attn.forward(x, { cache: layer }))).toThrow(/no `lengths` with sharded new tokens/);
    }));

  test("accepts an empty batch and zero tokens", () =>
    onMesh({ sp: 2 }, async (ctx) => {
      using cache = createCache(ctx);
      using sequence = cache.createSequence();
      for (const sequences of [[], [sequence]]) {
        const layer = cache.layer(0, sequences);
        using k = keys(ctx, sequences.length === 0 ? 2 : 0, sequences.length);
        using q = queries(ctx, sequences.length === 0 ? 2 : 0, sequences.length);
        layer.append(k, k);
        using out = layer.attend(q);
        expect(out.size).toBe(0);
        expect((await out.read()).length).toBe(0);
      }
    }));

  test("rejects gradients, and module options that a cache does not support", () =>
    onOneRank((ctx) => {
      using cache = createCache(ctx, { numKvHeads: 2, headDim: 4 });
      using sequence = cache.createSequence();
      const options = { embedDim: 8, numHeads: 2 } as const;
      using attn = new MultiAxisAttention(ctx, { ...options, attentionAxis: 1, causal: true });
      using gridAttention = new MultiAxisAttention2D(ctx, { ...options, axis1: 1, axis2: 2 });
      using x = randn(ctx, [1, 3, 8]);
      using pairs = randn(ctx, [2, 3, 8]);
      using table = randn(ctx, [1, 3, 2, 8]);
      const layer = cache.layer(0, [sequence]);
      expect(() => attn.forward(x, { cache: layer })).toThrow(/within noGrad\(\)/);
      expect(sequence.length).toBe(0);
      noGrad(() => {
        expect(() => attn.forward(pairs, { cache: layer })).toThrow(/batch size 1, one sample per sequence/);
        expect(() => attn.forward(x, { cache: layer, lengths: [2] })).toThrow(
          /pass the lengths of padded sequences to cache/,
        );
        expect(() => attn.forward(x, { cache: layer, mask: [masks.causal()] })).toThrow(/a mask for each sample/);
        expect(() => gridAttention.forward(table, { cache: layer })).toThrow(/use MultiAxisAttention/);
        expect(() => attn.forward(x, { cache: {} as never })).toThrow(/cache: expected an AttentionCache/);
      });
      expect(sequence.length).toBe(0);
    }));

  test("rejects a module with dropout in training mode, and accepts it after eval()", () =>
    onOneRank(async (ctx) => {
      using cache = createCache(ctx, { numKvHeads: 2, headDim: 4 });
      using sequence = cache.createSequence();
      const options = { embedDim: 8, numHeads: 2, attentionAxis: 1, causal: true } as const;
      using attn = new MultiAxisAttention(ctx, { ...options, dropout: 0.5 });
      using x = randn(ctx, [1, 3, 8]);
      const forward = () => noGrad(() => attn.forward(x, { cache: cache.layer(0, [sequence]) }));
      expect(forward).toThrow(
        "MultiAxisAttention.forward: cache: expected a module without dropout, or in evaluation mode, received a module with dropout 0.5 in training mode; call eval()",
      );
      expect(sequence.length).toBe(0);
      attn.eval();
      using out = forward();
      using expected = noGrad(() => attn.forward(x));
      const expectedValues = await expected.read();
      for (const [i, value] of (await out.read()).entries()) expect(value).toBeCloseTo(expectedValues[i]!, 5);
    }));

  test("rejects masks that are not causal or exceed the sliding window for sharded new tokens", () =>
    onMesh({ sp: 2 }, (ctx) => {
      using cache = createCache(ctx, { headDim: 8, numKvHeads: 1 });
      using windowedCache = createCache(ctx, { headDim: 8, numKvHeads: 1, slidingWindow: 3 });
      using attn = new MultiAxisAttention(ctx, { embedDim: 8, numHeads: 1, attentionAxis: 1, backend: "ring" });
      using x = randn(ctx, [1, 6, 8]);
      for (const testedCache of [cache, windowedCache]) {
        using sequence = testedCache.createSequence();
        const forward = (mask: Mask) =>
          noGrad(() => attn.forward(x, { cache: testedCache.layer(0, [sequence], { sharded: true }), mask })).dispose();
        const rejectsWideMasks = () => {
          expect(() => forward(masks.full())).toThrow(/KvCache: mask: expected a causal mask, received "full"/);
          if (testedCache === windowedCache)
            expect(() => forward(masks.causal())).toThrow(/within the cache's sliding window of 3 tokens/);
        };
        rejectsWideMasks();
        expect(sequence.length).toBe(0);
        forward(masks.slidingWindow(3));
        rejectsWideMasks();
        expect(sequence.length).toBe(12);
      }
    }));

  test("rejects tokens that are sharded along another axis than the cache", () =>
    onMesh({ node: 2, sp: 2 }, (ctx) => {
      using cache = createCache(ctx, { axis: "node", headDim: 8, numKvHeads: 1 });
      using sequence = cache.createSequence();
      const options = { embedDim: 8, numHeads: 1, attentionAxis: 1, causal: true, backend: "ring" } as const;
      using attn = new MultiAxisAttention(ctx, options);
      using x = randn(ctx, [1, 3, 8]);
      const layer = cache.layer(0, [sequence], { sharded: true });
      expect(() => noGrad(() => attn.forward(x, { cache: layer }))).toThrow(
        /sharded along the cache's axis, node, received/,
      );
      expect(() => createCache(ctx, { axis: "gpu" })).toThrow(/one of the axes node, sp/);
    }));
});
