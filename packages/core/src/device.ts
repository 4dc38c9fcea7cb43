import type { DType } from "./storage.ts";
import type { KernelFeature, Kernels } from "./kernels/kernels.ts";
import type { Shape } from "./shape.ts";
import type { Tensor } from "./tensor.ts";

/** Bytes of device memory. `reserved` counts what the caching allocator keeps, in use or not. */
export interface MemoryStats {
  readonly allocated: number;
  readonly reserved: number;
  /** The most that was allocated at once since the device was made or `resetPeakMemory` was called. */
  readonly peak: number;
  /** Scratch (workspace) memory of kernels, not included in `reserved`: it grows to the largest request. Both count toward the device's limit. */
  readonly scratch?: number;
}

/** A mark in a stream after all work enqueued so far. */
export interface Fence {
  readonly stream: Stream;
}

/** An in-order queue of work on a device. Nothing here blocks the host but what is awaited. See docs/ordering.md. */
export interface Stream {
  /** What native code of other packages orders its work by: a cudaStream_t, or a `MosaicStream *` on the CPU. */
  readonly handle: bigint;
  /** What else native code of other packages needs of a CUDA device: a `MosaicDevicePort *` of include/mosaic/device_port.h. */
  readonly port?: bigint;
  record(): Fence;
  /** Later work on this stream waits for the fence, the host does not. */
  wait(fence: Fence): void;
  /** Resolves when all work so far is done; rejects with the first failure of the stream. */
  synchronize(): Promise<void>;
}

/** A place that holds tensors and computes on them, in order, on its one compute stream. */
export interface Device extends Disposable {
  /** Open: "cpu", "cuda", yours. Collectives state which types they serve. */
  readonly type: string;
  readonly index: number;
  readonly stream: Stream;
  readonly kernels: Kernels;
  /** What its attention has beyond what every device must: a call that needs more is rejected. Absent: nothing. */
  readonly features?: readonly KernelFeature[];
  /** What its kernels are compiled for, where their rounding depends on it: "avx2". All ranks must have the same. */
  readonly instructionSet?: string;
  /** Uninitialised memory, ordered by the stream: what is freed may be handed out again at once. */
  empty(shape: Shape, dtype: DType): Tensor;
  /** Copies host values (row-major; taken at the call) into a tensor of any strides, rounding to its dtype. */
  write(out: Tensor, values: ArrayLike<number>): void;
  /** Resolves to the tensor's values in row-major order, as float32, once all work so far is done. */
  read(x: Tensor): Promise<Float32Array>;
  memory(): MemoryStats;
  resetPeakMemory(): void;
  /** Begins to record what the stream runs; `stopTrace` returns it. Off by default, and then without cost. */
  startTrace(): void;
  stopTrace(): Promise<readonly TraceEvent[]>;
}

/** One piece of work that ran: on a device's compute stream ("compute") or in the collectives ("communication"). */
export interface TraceEvent {
  readonly lane: "compute" | "communication";
  /** The kernel's or collective's name, e.g. "attend" or "sendRecv". */
  readonly name: string;
  /** Nanoseconds of CLOCK_MONOTONIC, which all processes of a host share. `start`: when it could begin to run. */
  readonly start: number;
  readonly end: number;
  /** Communication only: the caller's label, e.g. "ring(sp)", and the payload in bytes. */
  readonly label?: string;
  readonly bytesSent?: number;
  readonly bytesReceived?: number;
}
