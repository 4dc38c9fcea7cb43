import type { MemoryBlock } from "./storage.ts";

/**
 * Larger blocks are returned to the addon immediately. Work on that many bytes takes many times as long as the native
 * call.
 */
const MAX_BLOCK_BYTES = 64 * 2 ** 10;

/** Maximum bytes in the lists. It is limited because blocks in the lists cannot be merged with adjacent free blocks. */
const MAX_BYTES = 2 ** 20;

/**
 * Freed blocks by size, for later allocations of that size, so that a loop of equal steps allocates without native
 * calls. All work of a device runs in order on one stream, so a block that the host has freed may be reused
 * immediately.
 */
export class FreeLists {
  /** Block sizes are multiples of this power of two. */
  readonly #granularity: number;
  readonly #lists: MemoryBlock[][];
  #bytes = 0;

  constructor(granularity: number) {
    this.#granularity = granularity;
    this.#lists = Array.from({ length: MAX_BLOCK_BYTES / granularity + 1 }, () => []);
  }

  /** Total bytes of the blocks in the lists. */
  get bytes(): number {
    return this.#bytes;
  }

  /**
   * Removes and returns a block of the size that the addon would allocate for `byteLength`, or undefined if there is
   * none.
   */
  takeBlock(byteLength: number): MemoryBlock | undefined {
    if (!Number.isInteger(byteLength) || byteLength < 0 || byteLength > MAX_BLOCK_BYTES) return undefined;
    const block = this.#lists[this.#listIndex(byteLength)]?.pop();
    if (block !== undefined) this.#bytes -= block.byteLength;
    return block;
  }

  /** Adds a block to the lists. Returns false if it is too large or the lists are full. */
  putBlock(block: MemoryBlock): boolean {
    const { byteLength } = block;
    if (byteLength > MAX_BLOCK_BYTES || this.#bytes + byteLength > MAX_BYTES) return false;
    this.#lists[this.#listIndex(byteLength)]!.push(block);
    this.#bytes += byteLength;
    return true;
  }

  /** Empties the lists and returns their blocks. */
  clear(): MemoryBlock[] {
    const blocks = this.#lists.flat();
    for (const list of this.#lists) list.length = 0;
    this.#bytes = 0;
    return blocks;
  }

  /** Zero bytes also occupy a block. */
  #listIndex(byteLength: number): number {
    return Math.ceil(byteLength / this.#granularity) || 1;
  }
}
