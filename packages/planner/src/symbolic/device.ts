import {
  contiguousStrides,
  type Device,
  type DType,
  DeviceError,
  dtypeBytes,
  type Fence,
  type Kernels,
  type MemoryStats,
  type Shape,
  type Stream,
  numel,
  Tensor,
} from "@mosaic/core";
import { symbolicKernels } from "./kernels.ts";
import type { RankRecord } from "./rank-record.ts";
import { codeOf } from "./tape.ts";

/**
 * A device of type "symbolic": its tensors have shapes and no memory, its kernels write down that they were called. Code
 * that runs on it is the very code that runs elsewhere; what it would have computed cannot be read.
 */
export class SymbolicDevice implements Device {
  readonly type = "symbolic";
  readonly index: number;
  readonly stream: Stream;
  readonly kernels: Kernels;
  readonly record: RankRecord;
  #allocated = 0;
  #peak = 0;
  readonly #onFree = (bytes: number): void => {
    this.#allocated -= bytes;
  };

  constructor(record: RankRecord) {
    this.record = record;
    this.index = record.rank;
    this.kernels = symbolicKernels(this, record);
    this.stream = new SymbolicStream();
  }

  empty(shape: Shape, dtype: DType): Tensor {
    const size = numel(shape);
    this.#allocated += size * dtypeBytes[dtype];
    this.#peak = Math.max(this.#peak, this.#allocated);
    const storage = this.record.allocate(size, dtype, this.#onFree);
    return new Tensor({ device: this, dtype, storage, shape, strides: contiguousStrides(shape), offset: 0 });
  }

  write(out: Tensor): void {
    this.record.push(codeOf.compute, [this.record.names.word("write"), 1, this.record.viewOf(out)]);
    out.storage.recordMutation("write");
  }

  /** Rejects: there is nothing to read. */
  async read(x: Tensor): Promise<Float32Array> {
    throw new DeviceError({
      where: "read",
      expected: "a tensor with values",
      received: String(x),
      remedy: "run the program on a device that computes; this one only records what would be done",
    });
  }

  memory(): MemoryStats {
    return { allocated: this.#allocated, reserved: this.#allocated, peak: this.#peak };
  }

  resetPeakMemory(): void {
    this.#peak = this.#allocated;
  }

  startTrace(): void {}

  /** Nothing runs, so nothing takes time. */
  async stopTrace(): Promise<[]> {
    return [];
  }

  [Symbol.dispose](): void {}
}

/** Its order is that of the tape. */
class SymbolicStream implements Stream {
  readonly handle = 0n;

  record(): Fence {
    return { stream: this };
  }

  wait(): void {}

  async synchronize(): Promise<void> {}
}
