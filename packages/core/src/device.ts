import { expectValue } from "./errors.ts";
import type { DType } from "./storage.ts";
import type { KernelFeature, Kernels } from "./kernels/kernels.ts";
import type { Shape } from "./shape.ts";
import type { Tensor } from "./tensor.ts";

/** Bytes of device memory. `reserved` is the memory that the caching allocator holds, in use or not. */
export interface MemoryStats {
  readonly allocated: number;
  readonly reserved: number;
  /** Maximum of `allocated` since the device was created or `resetPeakMemory` was called. */
  readonly peak: number;
  /**
   * Workspace memory of kernels, not included in `reserved`. It grows to the largest request. Both count toward the
   * device's limit.
   */
  readonly scratch?: number;
}

/** An event recorded in a stream after all work enqueued so far. */
export interface Fence {
  readonly stream: Stream;
}

/**
 * An in-order queue of work on a device. No method blocks the host; only awaiting a promise waits. See
 * docs/ordering.md.
 */
export interface Stream {
  /**
   * Native handle for other packages' native code to order its work by: a cudaStream_t, or a `MosaicStream *` on the
   * CPU.
   */
  readonly handle: bigint;
  /**
   * Native interface of a CUDA device for other packages' native code: a `MosaicDevicePort *` of
   * include/mosaic/device_port.h.
   */
  readonly port?: bigint;
  record(): Fence;
  /** Makes later work on this stream wait for the fence. The host does not wait. */
  wait(fence: Fence): void;
  /** Resolves when all work enqueued so far is done; rejects with the first failure of the stream. */
  synchronize(): Promise<void>;
}

/** Holds tensors and computes on them in order, on a single compute stream. */
export interface Device extends Disposable {
  /** "cpu", "cuda", or the type of a custom device. Collectives state which types they support. */
  readonly type: string;
  readonly index: number;
  readonly stream: Stream;
  readonly kernels: Kernels;
  /**
   * Optional features of attention that the device supports. A call that needs another one is rejected. Absent: none.
   */
  readonly features?: readonly KernelFeature[];
  /**
   * The instruction set of the kernels, such as "avx2", if their rounding depends on it. Must be the same on all ranks.
   */
  readonly instructionSet?: string;
  /** Returns an uninitialized tensor. Allocation is stream-ordered: memory that is freed may be reused immediately. */
  empty(shape: Shape, dtype: DType): Tensor;
  /**
   * Copies row-major host values to a tensor of any strides, rounding to its dtype. The values are read during the
   * call.
   */
  write(out: Tensor, values: ArrayLike<number>): void;
  /** Resolves to the tensor's values in row-major order, as float32, when all work enqueued so far is done. */
  read(x: Tensor): Promise<Float32Array>;
  memory(): MemoryStats;
  resetPeakMemory(): void;
  /**
   * Starts recording the work of the stream; `stopTrace` returns it. Tracing is off by default and then has no cost.
   */
  startTrace(): void;
  stopTrace(): Promise<readonly TraceEvent[]>;
}

/** A completed operation on a device's compute stream ("compute") or in the collectives ("communication"). */
export interface TraceEvent {
  readonly lane: "compute" | "communication";
  /** The kernel's or collective's name, e.g. "attend" or "sendRecv". */
  readonly name: string;
  /**
   * Nanoseconds of CLOCK_MONOTONIC, which all processes of a host share. `start` is the time at which the operation
   * could begin to run.
   */
  readonly start: number;
  readonly end: number;
  /** Communication only: the caller's label, e.g. "ring(sp)", and the payload in bytes. */
  readonly label?: string;
  readonly bytesSent?: number;
  readonly bytesReceived?: number;
}

/**
 * Returns type and index of a device, as error messages and `console.log` show it.
 *
 * @example
 * ```ts
 * import { formatDevice } from "@mosaic/core";
 * formatDevice({ type: "cuda", index: 1 }); // => "cuda:1"
 * ```
 */
export function formatDevice(device: Pick<Device, "type" | "index">): string {
  expectValue("formatDevice", typeof device === "object" && device !== null, "a Device", device);
  return `${device.type}:${device.index}`;
}
