import { DisposedError, expectValue, formatShape, type Shape, Storage } from "@mosaic/core";
import type { CheckedStorage, PendingAccess } from "./pending-accesses.ts";

/**
 * A block of memory that an addon allocated. Either a storage or the device's free lists hold it, never both. So a
 * block is garbage-collected only if its storage was collected without being released. The block is then freed.
 */
export interface MemoryBlock {
  /** The address. It is exact as a number, because user space ends at 2^47. */
  readonly address: number;
  /** Id by which the addon frees the block. */
  readonly id: number;
  /** Bytes of device memory that the block occupies, at least as many as were requested. */
  readonly byteLength: number;
}

/** Owner to which blocks are returned. */
export interface BlockOwner {
  reclaim(block: MemoryBlock): void;
}

/**
 * Owner of storages whose memory is released. It differs from every device, so kernels reject them without an extra
 * check.
 */
const noOwner: BlockOwner = { reclaim() {} };

/** Returns the error for using a tensor whose storage has released its memory. */
export function releasedMemoryError(where: string, shape?: Shape): DisposedError {
  return new DisposedError({
    where,
    expected: "a tensor whose storage is allocated",
    received: `a sharded parameter${shape ? ` of shape ${formatShape(shape)}` : ""} whose storage is freed`,
    remedy: "use the parameter inside the forward of its unit, or inside summonFullParameters of @mosaic/nn",
  });
}

/** Memory of a device whose native code takes addresses as numbers. */
export class NativeStorage extends Storage implements CheckedStorage {
  /** The address; 0 while the memory is released. */
  address: number;
  /** The native device that owns the memory; `noOwner` while it is released. */
  owner: BlockOwner;
  pendingAccesses: PendingAccess[] | undefined = undefined;
  /** The block; undefined once it is freed. */
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
    this.pendingAccesses = undefined;
    owner.reclaim(block);
  }

  override adoptMemory(source: Storage): void {
    if (source instanceof NativeStorage && source.#block && this.isReleased && source.byteLength === this.byteLength) {
      this.#block = source.#block;
      this.owner = source.owner;
      this.address = source.address;
      this.pendingAccesses = source.pendingAccesses;
      source.#block = undefined;
      source.owner = noOwner;
      source.address = 0;
      source.pendingAccesses = undefined;
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
