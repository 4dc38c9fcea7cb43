import { Storage } from "@mosaic/core";

/** Memory of a device whose native code takes addresses as numbers. */
export class NativeStorage extends Storage {
  /** The address as a number: user space ends at 2^47, so it is exact. */
  readonly address: number;
  /** The native device that the memory belongs to. */
  readonly owner: object;

  constructor(owner: object, memory: { readonly address: number; readonly byteLength: number }, free: () => void) {
    super(BigInt(memory.address), memory.byteLength, free);
    this.owner = owner;
    this.address = memory.address;
  }
}
