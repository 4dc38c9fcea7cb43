import { checkArgument, DisposedError, formatValue, option, OptionError } from "@mosaic/core";
import { BlockTable } from "./block-table.ts";

const tables = new WeakMap<CacheSequence, BlockTable>();

/**
 * Returns the block table of a sequence. Throws an OptionError if the value is not a sequence, a DisposedError if it
 * was disposed.
 */
export function getTable(where: string, sequence: unknown): BlockTable {
  const table = tables.get(sequence as CacheSequence);
  if (!table) {
    throw new OptionError({
      where,
      expected: "a sequence from createSequence() or fork()",
      received: formatValue(sequence),
    });
  }
  if (!table.isReleased) return table;
  throw new DisposedError({ where, expected: "a sequence that is not disposed", received: "a disposed sequence" });
}

/**
 * One sequence of a `KvCache`: the blocks that hold its tokens. Every rank creates, changes and disposes the same
 * sequences in the same order.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { KvCache } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using cache = new KvCache(ctx, { numKvHeads: 1, headDim: 8, maxTokens: 256 });
 * const sequence = cache.createSequence();
 * using k = randn(ctx, [1, 1, 100, 8]);
 * cache.layer(0, [sequence]).append(k, k);
 * [sequence.length, cache.freeTokens]; // => [100, 128]
 * sequence.dispose();
 * cache.freeTokens; // => 256
 * ```
 */
export class CacheSequence implements Disposable {
  /** Called by `KvCache.createSequence`. */
  constructor(table: BlockTable) {
    tables.set(this, table);
  }

  /** Number of tokens that are stored in every layer. */
  get length(): number {
    return getTable("CacheSequence.length", this).length;
  }

  /**
   * Returns a new sequence with the same tokens in the same blocks, so that a prompt with several continuations is
   * stored once. If the last block is not full, it is copied when one of the sequences appends to it.
   *
   * @example
   * ```ts
   * import { init, randn } from "@mosaic/core";
   * import { cpu } from "@mosaic/kernels-cpu";
   * import { KvCache } from "@mosaic/nn";
   * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
   * using cache = new KvCache(ctx, { numKvHeads: 1, headDim: 8, maxTokens: 256 });
   * using prompt = cache.createSequence();
   * using k = randn(ctx, [1, 1, 100, 8]);
   * cache.layer(0, [prompt]).append(k, k);
   * using answer = prompt.fork();
   * [answer.length, cache.freeTokens]; // => [100, 128]
   * ```
   */
  fork(): CacheSequence {
    const table = getTable("CacheSequence.fork", this);
    return new CacheSequence(new BlockTable(table.cache, table));
  }

  /**
   * Keeps the first `length` tokens in every layer, for example to drop proposed tokens that the model rejected in
   * speculative decoding.
   *
   * @throws OptionError if `length` exceeds that of the sequence, or if the sliding window has dropped keys that are
   * visible to the token at position `length`.
   */
  truncate(length: number): void {
    const table = getTable("CacheSequence.truncate", this);
    checkArgument("CacheSequence.truncate: length", length, option.integer({ min: 0 }));
    table.truncate(length);
  }

  /** Releases the blocks that no other sequence uses. Idempotent. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    tables.get(this)?.release();
  }
}
