import { checkArgument, DisposedError, formatValue, option, OptionError } from "@mosaic/core";
import { BlockTable } from "./block-table.ts";

const tables = new WeakMap<CacheSequence, BlockTable>();

/** The blocks of a sequence. Throws an OptionError for what is none, a DisposedError for one that was disposed. */
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

/** One sequence of a `KvCache`: which blocks hold its tokens. Every rank makes, changes and disposes the same ones in the same order. */
export class CacheSequence implements Disposable {
  /** `KvCache.createSequence` makes them. */
  constructor(table: BlockTable) {
    tables.set(this, table);
  }

  /** Tokens that every layer holds. */
  get length(): number {
    return getTable("CacheSequence.length", this).length;
  }

  /**
   * Another sequence with the same tokens, in the same blocks: a prompt that several continue is stored once. The last block, where it is
   * not full, is copied when one of them appends to it.
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
   * Keeps the first `length` tokens, in every layer: drops what speculation proposed and the model rejected.
   *
   * @throws OptionError for more tokens than there are, and for fewer than the sliding window left.
   */
  truncate(length: number): void {
    const table = getTable("CacheSequence.truncate", this);
    checkArgument("CacheSequence.truncate: length", length, option.integer({ min: 0 }));
    table.truncate(length);
  }

  /** Gives back the blocks that no other sequence uses. Idempotent. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    tables.get(this)?.release();
  }
}
