import { DisposedError, expectValue, formatShape, type Shape, Storage } from "@mosaic/core";

/**
 * Memory as an addon handed it out. A storage holds it, or its device's free lists: never both. So a block is collected only if
 * its storage was collected without being released, and is then freed.
 */
export interface MemoryBlock {
  /** The address as a number: user space ends at 2^47, so it is exact. */
  readonly address: number;
  /** What the addon frees it by. */
  readonly id: number;
  /** What it takes of the device's memory: at least what was requested. */
  readonly byteLength: number;
}

/** What blocks return to. */
export interface BlockOwner {
  reclaim(block: MemoryBlock): void;
}

/** The owner of what has no memory: no device's, so that a kernel rejects it without a check of its own. */
const noOwner: BlockOwner = { reclaim() {} };

/** For the use of a tensor whose storage has released its memory. */
export function releasedMemoryError(where: string, shape?: Shape): DisposedError {
  return new DisposedError({
    where,
    expected: "a tensor whose storage is allocated",
    received: `a sharded parameter${shape ? ` of shape ${formatShape(shape)}` : ""} whose storage is freed`,
    remedy: "use the parameter inside the forward of its unit, or inside summonFullParameters of @mosaic/nn",
  });
}

/** Memory of a device whose native code takes addresses as numbers. */
export class NativeStorage extends Storage {
  /** The address as a number; 0 while the memory is released. */
  address: number;
  /** The native device that the memory belongs to; none while it is released. */
  owner: BlockOwner;
  /** Until it is freed. */
  #block: MemoryBlock | undefined;

  constructor(owner: BlockOwner, block: MemoryBlock, byteLength: number) {
    super(byteLength);
    this.owner = owner;
    this.address = block.address;
    this.#block = block;
  }

  get handle(): bigint {
    if (this.isReleased) throw releasedMemoryError("Storage.handle");
    return BigInt(this.address);
  }

  override get isReleased(): boolean {
    return this.owner === noOwner;
  }

  override releaseMemory(): void {
    const [owner, block] = [this.owner, this.#block];
    if (block === undefined) return;
    this.#block = undefined;
    this.owner = noOwner;
    this.address = 0;
    owner.reclaim(block);
  }

  override adoptMemory(source: Storage): void {
    if (source instanceof NativeStorage && source.#block && this.isReleased && source.byteLength === this.byteLength) {
      this.#block = source.#block;
      this.owner = source.owner;
      this.address = source.address;
      source.#block = undefined;
      source.owner = noOwner;
      source.address = 0;
      return;
    }
    const expected = `a source with ${this.byteLength} bytes of memory, for a storage whose memory was released`;
    expectValue("Storage.adoptMemory", false, expected, source);
  }

  protected free(): void {
    const block = this.#block;
    if (block === undefined) return;
    this.#block = undefined;
    this.owner.reclaim(block);
  }
}
