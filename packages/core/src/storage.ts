import { checkFunction, DisposedError, expectValue, MosaicError } from "./errors.ts";

/** How elements are stored. Arithmetic always accumulates in float32. */
export type DType = "float32" | "bfloat16" | "float16";

/** The number of each dtype in native code: `enum class DType` in `mosaic/view.h`. */
export const dtypeCodes: Readonly<Record<DType, number>> = { float32: 0, bfloat16: 1, float16: 2 };

/** Bytes per element. */
export const dtypeBytes: Readonly<Record<DType, number>> = { float32: 4, bfloat16: 2, float16: 2 };

/** Bits of the significand, with the one that is not stored. */
export const significandBits: Readonly<Record<DType, number>> = { float32: 24, bfloat16: 8, float16: 11 };

/**
 * The least finite float32. −∞ − (−∞) is NaN; subtracting at least this leaves every finite logarithm what it is, and −∞ what
 * it is.
 */
export const LOWEST_FLOAT32: number = -(2 - 2 ** -23) * 2 ** 127;

/**
 * Device memory, counted: every tensor that views it holds one reference, so does every collective that still uses it.
 * When the last one is released, the memory returns to its device's allocator, in stream order.
 */
export abstract class Storage {
  /** The address, as the device's native code understands it. */
  abstract readonly handle: bigint;
  readonly byteLength: number;
  /** −1 once the memory is freed. */
  #references = 0;
  #version = 0;
  #mutation = "";

  constructor(byteLength: number) {
    if (!Number.isFinite(byteLength) || byteLength < 0)
      expectValue("Storage", false, "a finite number of bytes ≥ 0", byteLength);
    this.byteLength = byteLength;
  }

  /** Gives the memory back in stream order; called when the last reference is released. */
  protected abstract free(): void;

  get references(): number {
    return Math.max(0, this.#references);
  }

  /** How often these elements were changed: a tensor saved for a backward must find the version that it was saved at. */
  get version(): number {
    return this.#version;
  }

  /** What raised the version last: a kernel, "write" or a collective. */
  get mutation(): string {
    return this.#mutation;
  }

  /** Raises the version; `operation` changes elements of this memory. */
  recordMutation(operation: string): void {
    this.#version++;
    this.#mutation = operation;
  }

  /** Runs `body` (synchronous), whose changes leave the version as it is; see `preserveVersion`. */
  preserveVersion<T>(body: () => T): T {
    checkFunction("preserveVersion", body);
    const [version, mutation] = [this.#version, this.#mutation];
    try {
      return body();
    } finally {
      this.#version = version;
      this.#mutation = mutation;
    }
  }

  /** Whether `releaseMemory` has given the memory back, and `adoptMemory` has not replaced it. */
  get isReleased(): boolean {
    return false;
  }

  /**
   * Gives the memory back in stream order while tensors refer to it: PyTorch's `resize_(0)` of a storage. Using them is an error until
   * `adoptMemory`. For sharded parameters, which exist while they are used.
   */
  releaseMemory(): void {
    throw new MosaicError({
      where: "Storage.releaseMemory",
      expected: "a storage whose memory can be released",
      received: `a ${this.constructor.name}`,
      remedy: "use a native device, such as cpu() or cuda()",
    });
  }

  /** After `releaseMemory`: takes the memory of a storage of the same device and length, which must be referred to by one tensor; that one has none then. */
  adoptMemory(source: Storage): void {
    expectValue("Storage.adoptMemory", source instanceof Storage, "a Storage", source);
    this.releaseMemory();
  }

  /** For allocators that hand out the same storage again, after `free`. */
  protected resetReferences(): void {
    this.#references = 0;
  }

  /** @throws DisposedError if the memory was freed. */
  retain(): void {
    if (this.#references < 0) rejectFreedMemory();
    this.#references++;
  }

  release(): void {
    if (--this.#references !== 0) return;
    this.#references = -1;
    this.free();
  }
}

/**
 * Memory of a device in TypeScript. `free` also runs when all tensors of it were collected without being disposed; so it must
 * not refer to the storage, or to tensors of it.
 */
export class FinalizedStorage extends Storage {
  readonly handle: bigint;
  readonly #freeMemory: () => void;

  constructor(handle: bigint, byteLength: number, freeMemory: () => void) {
    if (typeof handle !== "bigint") expectValue("Storage", false, "an address as a bigint", handle);
    if (typeof freeMemory !== "function") checkFunction("Storage: free", freeMemory);
    super(byteLength);
    this.handle = handle;
    this.#freeMemory = freeMemory;
    leakRegistry.register(this, freeMemory, this);
  }

  protected free(): void {
    leakRegistry.unregister(this);
    this.#freeMemory();
  }
}

/** Frees memory whose tensors were collected without being disposed, late, so do not rely on it. */
const leakRegistry = new FinalizationRegistry<() => void>((freeMemory) => freeMemory());

function rejectFreedMemory(): never {
  throw new DisposedError({ where: "Storage.retain", expected: "memory in use", received: "memory that was freed" });
}
