/**
 * Device memory, counted: every tensor that shows it holds one reference, so does every collective that still uses it.
 * When the last one lets go, the memory returns to its device's allocator, in stream order.
 */
export class Storage {
  /** The address, as the device's native code understands it. */
  readonly handle: bigint;
  readonly byteLength: number;
  /** What notices that all tensors of it were lost; undefined if that would cost more than the memory is worth. */
  readonly net: FinalizationRegistry<Storage> | undefined = lostTensors;
  readonly #free: () => void;
  #references = 0;

  constructor(handle: bigint, byteLength: number, free: () => void) {
    this.handle = handle;
    this.byteLength = byteLength;
    this.#free = free;
  }

  get references(): number {
    return this.#references;
  }

  retain(): void {
    this.#references++;
  }

  release(): void {
    if (--this.#references === 0) this.#free();
  }
}

/** The safety net for tensors that nobody disposed; collected memory comes back late, so do not rely on it. */
export const lostTensors: FinalizationRegistry<Storage> = new FinalizationRegistry((storage) => storage.release());
