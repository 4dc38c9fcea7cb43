import { checkFunction, expectValue } from "./errors.ts";

/** How elements are stored. Arithmetic always accumulates in float32. */
export type DType = "float32" | "bfloat16" | "float16";

/** The number of each dtype in native code: `enum class DType` in `mosaic/view.h`. */
export const dtypeCodes: Readonly<Record<DType, number>> = { float32: 0, bfloat16: 1, float16: 2 };

/** Bytes per element. */
export const dtypeBytes: Readonly<Record<DType, number>> = { float32: 4, bfloat16: 2, float16: 2 };

/**
 * Device memory, counted: every tensor that views it holds one reference, so does every collective that still uses it.
 * When the last one is released, the memory returns to its device's allocator, in stream order.
 */
export class Storage {
  /** The address, as the device's native code understands it. */
  readonly handle: bigint;
  readonly byteLength: number;
  /** Frees this memory once all its tensors are garbage; undefined where registering would cost more than the memory is worth. */
  readonly leakRegistry: FinalizationRegistry<Storage> | undefined = leakedTensors;
  readonly #free: () => void;
  #references = 0;
  #version = 0;
  #mutation = "";

  constructor(handle: bigint, byteLength: number, free: () => void) {
    if (typeof handle !== "bigint") expectValue("Storage", false, "an address, a bigint", handle);
    if (!Number.isFinite(byteLength) || byteLength < 0) expectValue("Storage", false, "a number of bytes", byteLength);
    if (typeof free !== "function") checkFunction("Storage: free", free);
    this.handle = handle;
    this.byteLength = byteLength;
    this.#free = free;
  }

  get references(): number {
    return this.#references;
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

  retain(): void {
    this.#references++;
  }

  release(): void {
    if (--this.#references === 0) this.#free();
  }
}

/** The leak registry: frees memory of tensors that were collected without being disposed, late, so do not rely on it. */
export const leakedTensors: FinalizationRegistry<Storage> = new FinalizationRegistry((storage) => storage.release());
