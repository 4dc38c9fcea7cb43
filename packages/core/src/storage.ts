import { checkFunction, DisposedError, expectValue, MosaicError } from "./errors.ts";

/** Storage type of elements. Arithmetic always accumulates in float32. */
export type DType = "float32" | "bfloat16" | "float16";

/** The code of each dtype in native code: `enum class DType` in `mosaic/view.h`. */
export const dtypeCodes: Readonly<Record<DType, number>> = { float32: 0, bfloat16: 1, float16: 2 };

/** Bytes per element. */
export const dtypeBytes: Readonly<Record<DType, number>> = { float32: 4, bfloat16: 2, float16: 2 };

/** Bits of the significand, including the implicit leading bit. */
export const significandBits: Readonly<Record<DType, number>> = { float32: 24, bfloat16: 8, float16: 11 };

/**
 * The lowest finite float32. A logarithm is clamped to it before it is subtracted, because −∞ − (−∞) is NaN. Clamping
 * leaves finite logarithms unchanged, and −∞ minus the clamped value is −∞.
 */
export const LOWEST_FLOAT32: number = -(2 - 2 ** -23) * 2 ** 127;

/**
 * Reference-counted device memory. Every tensor that views it and every collective that uses it holds a reference. When
 * the last one is released, the memory is returned to the device's allocator, in stream order.
 */
export abstract class Storage {
  /** The address or handle of the memory in the device's native code. */
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

  /** Frees the memory in stream order. Called when the last reference is released. */
  protected abstract free(): void;

  get references(): number {
    return Math.max(0, this.#references);
  }

  /**
   * Number of mutations of the memory. A tensor saved for a backward must still have the version at which it was saved.
   */
  get version(): number {
    return this.#version;
  }

  /** The operation that last incremented the version: a kernel, "write" or a collective. */
  get mutation(): string {
    return this.#mutation;
  }

  /** Increments the version, because `operation` changes elements of this memory. */
  recordMutation(operation: string): void {
    this.#version++;
    this.#mutation = operation;
  }

  /** Runs `body` (synchronous), and restores the version afterwards; see `preserveVersion`. */
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

  /** Whether the memory was freed by `releaseMemory` and not yet replaced by `adoptMemory`. */
  get isReleased(): boolean {
    return false;
  }

  /**
   * Frees the memory in stream order while tensors still refer to the storage, as PyTorch's `resize_(0)` of a storage.
   * Using these tensors is an error until `adoptMemory`. For sharded parameters, whose full values exist only while
   * they are used.
   */
  releaseMemory(): void {
    throw new MosaicError({
      where: "Storage.releaseMemory",
      expected: "a storage whose memory can be released",
      received: `a ${this.constructor.name}`,
      remedy: "use a native device, such as cpu() or cuda()",
    });
  }

  /**
   * Takes over the memory of another storage after `releaseMemory`. The source must have the same device and length and
   * be referenced by exactly one tensor. It has no memory afterwards.
   */
  adoptMemory(source: Storage): void {
    expectValue("Storage.adoptMemory", source instanceof Storage, "a Storage", source);
    this.releaseMemory();
  }

  /** Resets the reference count after `free`, for allocators that reuse storage objects. */
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
 * Memory of a device in TypeScript. `freeMemory` also runs when all its tensors were garbage-collected without being
 * disposed, so it must not refer to the storage or its tensors.
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

/**
 * Frees memory whose tensors were garbage-collected without being disposed. This happens late and must not be relied
 * on.
 */
const leakRegistry = new FinalizationRegistry<() => void>((freeMemory) => freeMemory());

function rejectFreedMemory(): never {
  throw new DisposedError({ where: "Storage.retain", expected: "memory in use", received: "memory that was freed" });
}
