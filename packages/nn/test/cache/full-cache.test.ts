import { type Context, OutOfMemoryError, randn, scope } from "@mosaic/core";
import { expect, test, vi } from "vitest";
import { type CacheSequence, KvCache } from "../../src/index.ts";
import { onMesh, onOneRank } from "../reference/world.ts";

const shape = { numKvHeads: 1, headDim: 8, blockSize: 4 } as const;

/** Appends random tokens to each sequence, the same on every rank. */
// oxlint-disable-next-line max-params -- where, to what, how many, and in which layer
function append(ctx: Context, cache: KvCache, sequences: readonly CacheSequence[], rows: number, layer = 0): void {
  scope(() => {
    const keys = randn(ctx, [sequences.length, 1, rows, 8], { seed: 1, stream: 0 });
    cache.layer(layer, sequences).append(keys, keys);
  });
}

test("a block that only sequences of the batch share needs one copy less than it has sequences", () =>
  onOneRank((ctx) => {
    using cache = new KvCache(ctx, { ...shape, maxTokens: 12 });
    using prompt = cache.createSequence();
    append(ctx, cache, [prompt], 2);
    using firstFork = prompt.fork();
    using secondFork = prompt.fork();
    expect(cache.freeTokens).toBe(8);
    append(ctx, cache, [prompt, firstFork, secondFork], 1);
    expect([prompt, firstFork, secondFork].map(({ length }) => length)).toEqual([3, 3, 3]);
    expect(cache.freeTokens).toBe(0);
  }));

test("a shared block whose rank has no free block cannot be copied, and the cache is unchanged", () =>
  onMesh({ sp: 2 }, (ctx) => {
    using cache = new KvCache(ctx, { ...shape, maxTokens: 16 });
    using otherSequence = cache.createSequence();
    using prompt = cache.createSequence();
    append(ctx, cache, [prompt], 2); // on rank 0
    append(ctx, cache, [otherSequence], 8); // on ranks 1 and 0
    using fork = prompt.fork();
    expect(cache.freeTokens).toBe(4);
    expect(() => append(ctx, cache, [fork], 1)).toThrow(
      "KvCache: append: expected 1 free blocks of 4 tokens on rank 0, received 0 of 2 blocks free; dispose or truncate",
    );
    expect([prompt, otherSequence, fork].map(({ length }) => length)).toEqual([2, 8, 2]);
    expect(cache.freeTokens).toBe(4);
    prompt.dispose();
    append(ctx, cache, [fork], 1); // no longer shared
    expect(fork.length).toBe(3);
  }));

test("an append that fails in one layer does not release blocks with tokens of other layers", () =>
  onOneRank(async (ctx) => {
    using cache = new KvCache(ctx, { ...shape, numLayers: 2, maxTokens: 64 });
    using sequence = cache.createSequence();
    append(ctx, cache, [sequence], 6);
    using q = randn(ctx, [1, 1, 1, 8], { seed: 1, stream: 1 });
    using outBefore = cache.layer(0, [sequence]).attend(q);
    const copy = vi.spyOn(ctx.device.kernels, "copy").mockImplementation(() => {
      throw new OutOfMemoryError({ where: "copy" });
    });
    expect(() => append(ctx, cache, [sequence], 6, 1)).toThrow(OutOfMemoryError);
    copy.mockRestore();
    expect(cache.freeTokens).toBe(64 - 8);
    append(ctx, cache, [sequence], 6, 1);
    using outAfter = cache.layer(0, [sequence]).attend(q);
    expect(await outAfter.read()).toEqual(await outBefore.read());
  }));
