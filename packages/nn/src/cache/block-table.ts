import { formatValue, OptionError, OutOfMemoryError } from "@mosaic/core";
import type { BlockPool } from "./block-pool.ts";

/** State shared by all sequences of a cache. */
export interface CacheBlocks {
  readonly pool: BlockPool;
  readonly blockSize: number;
  readonly numLayers: number;
  /** Maximum number of keys visible to a query, including its own; undefined: all. */
  readonly slidingWindow: number | undefined;
  /** Copies a block in all layers if this rank owns it. */
  copyBlock(sourceBlock: number, targetBlock: number): void;
  /** Incremented whenever the blocks of a sequence change. */
  revision: number;
}

/** The tokens at positions [position, position + length), stored in rows [row, row + length) of a rank's memory. */
export interface BlockRows {
  readonly position: number;
  readonly row: number;
  readonly length: number;
}

/** The blocks of one sequence, by position: block i holds positions [i · blockSize, (i + 1) · blockSize). */
export class BlockTable {
  readonly cache: CacheBlocks;
  /** The first `#numDroppedBlocks` were released by the sliding window. */
  readonly #blocks: number[];
  readonly #lengths: number[];
  #numDroppedBlocks: number;
  #isReleased = false;

  constructor(cache: CacheBlocks, sourceTable?: BlockTable) {
    this.cache = cache;
    const length = sourceTable?.length ?? 0;
    this.#blocks = sourceTable === undefined ? [] : sourceTable.#blocks.slice(0, Math.ceil(length / cache.blockSize));
    this.#lengths = Array.from({ length: cache.numLayers }, () => length);
    this.#numDroppedBlocks = sourceTable === undefined ? 0 : sourceTable.#numDroppedBlocks;
    for (const block of this.#blocks.slice(this.#numDroppedBlocks)) cache.pool.retain(block);
  }

  get isReleased(): boolean {
    return this.#isReleased;
  }

  /** Number of tokens that are stored in every layer. */
  get length(): number {
    return Math.min(...this.#lengths);
  }

  /** The first position whose keys were not dropped. */
  get firstKeptPosition(): number {
    return this.#numDroppedBlocks * this.cache.blockSize;
  }

  getLayerLength(layer: number): number {
    return this.#lengths[layer]!;
  }

  /**
   * Returns the number of new blocks that `count` more tokens need in a layer, excluding the copy of a shared block.
   */
  countMissingBlocks(layer: number, count: number): number {
    const blocks = Math.ceil((this.#lengths[layer]! + count) / this.cache.blockSize);
    return Math.max(0, blocks - this.#blocks.length);
  }

  /**
   * Returns the block to which the next token of a layer will be written if other sequences share it, otherwise
   * undefined.
   */
  findSharedBlock(layer: number, count: number): number | undefined {
    const { blockSize, pool } = this.cache;
    const length = this.#lengths[layer]!;
    if (count === 0 || length % blockSize === 0) return undefined;
    const block = this.#blocks[Math.floor(length / blockSize)]!;
    return pool.references(block) > 1 ? block : undefined;
  }

  /** Copy-on-write: replaces a shared block by a private copy before the next token is written. */
  copySharedBlock(layer: number, count: number): void {
    const sharedBlock = this.findSharedBlock(layer, count);
    if (sharedBlock === undefined) return;
    const { pool } = this.cache;
    const newBlock = pool.allocate(pool.getOwner(sharedBlock), sharedBlock);
    this.cache.copyBlock(sharedBlock, newBlock);
    pool.release(sharedBlock);
    this.#blocks[Math.floor(this.#lengths[layer]! / this.cache.blockSize)] = newBlock;
    this.cache.revision++;
  }

  /** Allocates blocks for `count` more tokens in a layer. */
  extend(layer: number, count: number): void {
    for (let numMissingBlocks = this.countMissingBlocks(layer, count); numMissingBlocks > 0; numMissingBlocks--)
      this.#allocate();
    this.#lengths[layer]! += count;
  }

  /**
   * Allocates the next block on the next rank (block-cyclic). If that rank is full, uses the one with the most free
   * blocks.
   */
  #allocate(): void {
    const { pool } = this.cache;
    const lastBlock = this.#blocks.at(-1);
    const nextRank = lastBlock === undefined ? pool.emptiestRank : (pool.getOwner(lastBlock) + 1) % pool.ranks;
    const rank = pool.countFreeBlocks(nextRank) > 0 ? nextRank : pool.emptiestRank;
    const previous = this.#blocks.findLast((block) => pool.getOwner(block) === rank);
    this.#blocks.push(pool.allocate(rank, previous));
    this.cache.revision++;
  }

  /** Releases the blocks that are not visible to any later token. */
  dropInvisibleBlocks(): void {
    const { slidingWindow, blockSize, pool } = this.cache;
    if (slidingWindow === undefined) return;
    const end = Math.max(this.#numDroppedBlocks, Math.floor(Math.max(0, this.length - slidingWindow + 1) / blockSize));
    for (const block of this.#blocks.slice(this.#numDroppedBlocks, end)) pool.release(block);
    if (end > this.#numDroppedBlocks) this.cache.revision++;
    this.#numDroppedBlocks = end;
  }

  truncate(length: number): void {
    const { blockSize, pool, slidingWindow = 0 } = this.cache;
    if (length > this.length) {
      throw new OptionError({
        where: "KvCache: truncate",
        expected: `at most ${this.length}, the length of the sequence`,
        received: formatValue(length),
      });
    }
    if (this.#numDroppedBlocks > 0 && length - slidingWindow + 1 < this.firstKeptPosition) {
      throw new OptionError({
        where: "KvCache: truncate",
        expected: `a length of at least ${this.firstKeptPosition + slidingWindow - 1}, because the sliding window has dropped the tokens before position ${this.firstKeptPosition}`,
        received: String(length),
      });
    }
    for (const block of this.#blocks.splice(Math.ceil(length / blockSize))) pool.release(block);
    this.#lengths.fill(length);
    this.cache.revision++;
  }

  /** Removes the last tokens of one layer after a failed call, and releases blocks in which no layer has tokens. */
  rollBack(layer: number, length: number): void {
    this.#lengths[layer] = length;
    const numUsedBlocks = Math.ceil(Math.max(...this.#lengths) / this.cache.blockSize);
    for (const block of this.#blocks.splice(numUsedBlocks)) this.cache.pool.release(block);
    this.cache.revision++;
  }

  release(): void {
    if (this.#isReleased) return;
    this.#isReleased = true;
    for (const block of this.#blocks.splice(0).slice(this.#numDroppedBlocks)) this.cache.pool.release(block);
    this.cache.revision++;
  }

  /** Returns the rank of the axis that holds the token at a position. */
  getOwnerAt(position: number): number {
    return this.cache.pool.getOwner(this.#blocks[Math.floor(position / this.cache.blockSize)]!);
  }

  /** Returns the row of the token at a position, in the memory of the rank that holds it. */
  getRow(position: number): number {
    const { blockSize, pool } = this.cache;
    const block = this.#blocks[Math.floor(position / blockSize)]!;
    return (block % pool.blocksPerRank) * blockSize + (position % blockSize);
  }

  /**
   * Lists the rows of a rank's memory that hold those of the tokens [start, end) that it stores, in ascending order of
   * position. Blocks whose positions and rows are both consecutive are merged.
   */
  listRankRows(rank: number, start: number, end: number): BlockRows[] {
    const { blockSize, pool } = this.cache;
    const firstRankBlock = pool.blocksPerRank * rank;
    const blockRows: BlockRows[] = [];
    let lastRowRange: { -readonly [Field in keyof BlockRows]: BlockRows[Field] } | undefined;
    const firstPosition = Math.max(start, this.firstKeptPosition);
    for (let index = Math.floor(firstPosition / blockSize); index * blockSize < end; index++) {
      const localBlock = this.#blocks[index]! - firstRankBlock;
      if (localBlock < 0 || localBlock >= pool.blocksPerRank) continue;
      const position = Math.max(firstPosition, index * blockSize);
      const length = Math.min(end, (index + 1) * blockSize) - position;
      const row = localBlock * blockSize + (position % blockSize);
      if (
        lastRowRange &&
        lastRowRange.position + lastRowRange.length === position &&
        lastRowRange.row + lastRowRange.length === row
      )
        lastRowRange.length += length;
      else blockRows.push((lastRowRange = { position, row, length }));
    }
    return blockRows;
  }
}

/**
 * Allocates blocks for `counts[i]` more tokens of each sequence i in a layer, for all sequences or for none.
 *
 * @throws OutOfMemoryError before anything has changed.
 */
export function extendTables(layer: number, tables: readonly BlockTable[], counts: readonly number[]): void {
  const [firstTable] = tables;
  if (!firstTable) return;
  const { pool, blockSize } = firstTable.cache;
  for (const table of tables) table.dropInvisibleBlocks();
  const numMissingBlocks = tables.reduce((sum, table, i) => sum + table.countMissingBlocks(layer, counts[i]!), 0);
  const copyCounts = countCopiesByRank(layer, tables, counts);
  const numNeededBlocks = numMissingBlocks + copyCounts.reduce((sum, count) => sum + count, 0);
  const isPoolFull = numNeededBlocks > pool.free;
  const fullRank = copyCounts.findIndex((count, rank) => count > pool.countFreeBlocks(rank));
  if (isPoolFull || fullRank >= 0) {
    throw new OutOfMemoryError({
      where: "KvCache: append",
      expected: isPoolFull
        ? `${numNeededBlocks} free blocks of ${blockSize} tokens`
        : `${copyCounts[fullRank]} free blocks of ${blockSize} tokens on rank ${fullRank}`,
      received: isPoolFull
        ? `${pool.free} of ${pool.ranks * pool.blocksPerRank} blocks free`
        : `${pool.countFreeBlocks(fullRank)} of ${pool.blocksPerRank} blocks free`,
      remedy: "dispose or truncate sequences, or raise maxTokens; the cache is unchanged",
    });
  }
  tables.forEach((table, i) => table.copySharedBlock(layer, counts[i]!));
  tables.forEach((table, i) => table.extend(layer, counts[i]!));
}

/**
 * Counts the copies of shared blocks by rank. A block that only sequences of the batch share is copied for all of them
 * but the last, which keeps the original.
 */
function countCopiesByRank(layer: number, tables: readonly BlockTable[], counts: readonly number[]): number[] {
  const { pool } = tables[0]!.cache;
  const numWritersByBlock = new Map<number, number>();
  tables.forEach((table, i) => {
    const block = table.findSharedBlock(layer, counts[i]!);
    if (block !== undefined) numWritersByBlock.set(block, (numWritersByBlock.get(block) ?? 0) + 1);
  });
  const copyCounts = Array.from({ length: pool.ranks }, () => 0);
  for (const [block, count] of numWritersByBlock)
    copyCounts[pool.getOwner(block)]! += Math.min(count, pool.references(block) - 1);
  return copyCounts;
}
