import { OutOfMemoryError } from "@mosaic/core";

// Tracks which blocks of a cache are in use. Blocks are numbered: rank r of the axis owns `blocksPerRank` blocks,
// starting at r · blocksPerRank. Every rank tracks the blocks of all ranks and applies the same changes in the same
// order, so that allocating a block needs no communication.

/** Reference counts of all blocks. Every rank owns the same number of blocks. */
export class BlockPool {
  readonly ranks: number;
  readonly blocksPerRank: number;
  readonly #references: Int32Array;
  readonly #freeBlockCounts: number[];

  constructor(rankCount: number, blocksPerRank: number) {
    this.ranks = rankCount;
    this.blocksPerRank = blocksPerRank;
    this.#references = new Int32Array(rankCount * blocksPerRank);
    this.#freeBlockCounts = Array.from({ length: rankCount }, () => blocksPerRank);
  }

  /** Number of free blocks over all ranks. */
  get free(): number {
    return this.#freeBlockCounts.reduce((sum, each) => sum + each, 0);
  }

  getOwner(block: number): number {
    return Math.floor(block / this.blocksPerRank);
  }

  /** Returns the number of sequences that use a block. */
  references(block: number): number {
    return this.#references[block]!;
  }

  retain(block: number): void {
    this.#references[block]!++;
  }

  release(block: number): void {
    if (--this.#references[block]! === 0) this.#freeBlockCounts[this.getOwner(block)]!++;
  }

  countFreeBlocks(rank: number): number {
    return this.#freeBlockCounts[rank]!;
  }

  /** The rank with the most free blocks; the lowest of several. */
  get emptiestRank(): number {
    return this.#freeBlockCounts.indexOf(Math.max(...this.#freeBlockCounts));
  }

  /**
   * Allocates a free block of `rank`: the block after `previous` if it is free, so that the keys of a sequence are
   * contiguous and read as one range; otherwise a block in the largest gap.
   */
  allocate(rank: number, previous: number | undefined): number {
    const nextBlock = previous === undefined ? -1 : previous + 1;
    const isNextFree = nextBlock >= 0 && this.getOwner(nextBlock) === rank && this.#references[nextBlock] === 0;
    const block = isNextFree ? nextBlock : this.#findMiddleOfLargestGap(rank);
    this.#references[block] = 1;
    this.#freeBlockCounts[rank]!--;
    return block;
  }

  /**
   * Returns the middle of the longest run of free blocks, so that the sequence in front of the run can grow into its
   * first half. A run at the start of the rank's blocks has no sequence in front, and its first block is returned.
   */
  #findMiddleOfLargestGap(rank: number): number {
    const [firstBlock, endBlock] = [rank * this.blocksPerRank, (rank + 1) * this.blocksPerRank];
    let longestGap = { start: firstBlock, length: 0 };
    for (let block = firstBlock; block < endBlock; block++) {
      const start = block;
      while (block < endBlock && this.#references[block] === 0) block++;
      if (block - start > longestGap.length) longestGap = { start, length: block - start };
    }
    if (longestGap.length === 0) {
      throw new OutOfMemoryError({ where: "KvCache", expected: `a free block on rank ${rank}`, received: "none" });
    }
    return longestGap.start === firstBlock ? firstBlock : longestGap.start + Math.floor(longestGap.length / 2);
  }
}
