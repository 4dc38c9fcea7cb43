import { OutOfMemoryError } from "@mosaic/core";

// Which blocks of a cache are in use. A block is a number: those of rank r of the axis are r · blocksPerRank and the ones that follow. Every
// rank keeps this account of all ranks, and makes the same changes to it in the same order: nothing is sent to agree on a block.

/** Blocks with their reference counts; on each rank as many. */
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

  /** Blocks that nothing uses, of all ranks. */
  get free(): number {
    return this.#freeBlockCounts.reduce((sum, each) => sum + each, 0);
  }

  getOwner(block: number): number {
    return Math.floor(block / this.blocksPerRank);
  }

  /** How many sequences use a block. */
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

  /** The rank on which most blocks are free; of several, the first. */
  get emptiestRank(): number {
    return this.#freeBlockCounts.indexOf(Math.max(...this.#freeBlockCounts));
  }

  /**
   * A free block of `rank`: the one behind `previous`, so that a sequence's keys lie side by side and are read as one, else one with
   * much room behind it.
   */
  allocate(rank: number, previous: number | undefined): number {
    const nextBlock = previous === undefined ? -1 : previous + 1;
    const isNextFree = nextBlock >= 0 && this.getOwner(nextBlock) === rank && this.#references[nextBlock] === 0;
    const block = isNextFree ? nextBlock : this.#findMiddleOfLargestGap(rank);
    this.#references[block] = 1;
    this.#freeBlockCounts[rank]!--;
    return block;
  }

  /** The middle of the longest run of free blocks, for the sequence before it may grow into its start. */
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
