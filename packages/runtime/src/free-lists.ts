import type { MemoryBlock } from "./storage.ts";

/** Larger blocks go back to the addon at once: work on so many bytes takes many times as long as the call. */
const MAX_BLOCK_BYTES = 64 * 2 ** 10;

/** Bytes that the lists may hold: what lies in them cannot be joined with its neighbours. */
const MAX_BYTES = 2 ** 20;

/**
 * Freed blocks by size, for the next allocation of that size: a loop of equal steps allocates without a native call. Everything on
 * a device runs in order on one stream, so what the host has freed may be handed out again at once.
 */
export class FreeLists {
  /** Sizes of blocks are multiples of it, a power of two. */
  readonly #granularity: number;
  readonly #lists: MemoryBlock[][];
  #bytes = 0;

  constructor(granularity: number) {
    this.#granularity = granularity;
    this.#lists = Array.from({ length: MAX_BLOCK_BYTES / granularity + 1 }, () => []);
  }

  /** Bytes of the blocks in the lists. */
  get bytes(): number {
    return this.#bytes;
  }

  /** A block of the size that the addon would give for so many bytes; undefined if there is none. */
  takeBlock(byteLength: number): MemoryBlock | undefined {
    if (!Number.isInteger(byteLength) || byteLength < 0 || byteLength > MAX_BLOCK_BYTES) return undefined;
    const block = this.#lists[this.#listIndex(byteLength)]?.pop();
    if (block !== undefined) this.#bytes -= block.byteLength;
    return block;
  }

  /** Whether the lists have taken the block. */
  putBlock(block: MemoryBlock): boolean {
    const { byteLength } = block;
    if (byteLength > MAX_BLOCK_BYTES || this.#bytes + byteLength > MAX_BYTES) return false;
    this.#lists[this.#listIndex(byteLength)]!.push(block);
    this.#bytes += byteLength;
    return true;
  }

  /** Empties the lists. */
  clear(): MemoryBlock[] {
    const blocks = this.#lists.flat();
    for (const list of this.#lists) list.length = 0;
    this.#bytes = 0;
    return blocks;
  }

  /** Nothing takes a block, too. */
  #listIndex(byteLength: number): number {
    return Math.ceil(byteLength / this.#granularity) || 1;
  }
}
