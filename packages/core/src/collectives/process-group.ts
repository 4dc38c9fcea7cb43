import type { Device, TraceEvent } from "../device.ts";
import type { Tensor } from "../tensor.ts";

/** One message of a batch; ranks are those of the group. */
export type Transfer =
  | { readonly tensor: Tensor; readonly to: number }
  | { readonly tensor: Tensor; readonly from: number };
/** Operator of a reduction. Accumulation is in float32 and in rank order. */
export type ReduceOp = "sum" | "mean" | "max";

/** A collective in flight. It keeps its tensors' memory alive until it is done. */
export interface Work {
  /**
   * Orders later work on the device's compute stream after this collective. The host does not wait for the collective
   * to finish. On CUDA it waits until the collective is enqueued; a `split` posted before it delays this until the
   * other ranks have called `split`. Call it at most once. On native devices, using a tensor that the collective writes
   * before this call, or `wait` of a later operation of the rank, throws an OptionError.
   */
  wait(): void;
}

/** Options of every collective. */
export interface CollectiveOptions {
  /** Name of the caller, shown in messages and traces: `ring(sp)`. */
  readonly label?: string;
}
/** Options of allGather and reduceScatter. */
export interface GatherOptions extends CollectiveOptions {
  /** Number of elements that each rank holds, by rank; equal shares if absent. */
  readonly counts?: readonly number[];
}
/** Options of allToAll. */
export interface AllToAllOptions extends CollectiveOptions {
  /** Number of elements sent to (`send`) and received from (`receive`) each rank, by rank; equal shares if absent. */
  readonly send?: readonly number[];
  readonly receive?: readonly number[];
}

/** Rows [start, start + length). */
export interface RowRange {
  readonly start: number;
  readonly length: number;
}

/**
 * The rows of each rank's input that every rank receives. Must be the same on all ranks of the group. At the first call
 * with a plan object, a group verifies the ranges of its own rank and hashes those of all ranks. Reuse the object for
 * the same plan.
 */
export interface GroupCastPlan {
  /** Number of ranks. */
  readonly size: number;
  /**
   * Returns the local rows of `sender`'s input that `receiver` receives: ascending, disjoint, non-empty ranges; none if
   * sender = receiver.
   */
  ranges(sender: number, receiver: number): readonly RowRange[];
}

/** Options of groupCast. */
export interface GroupCastOptions extends CollectiveOptions {
  /**
   * Sends a row that several ranks of another host require to that host once, to one of those ranks, which forwards it
   * to the others. This takes two consecutive batches of messages, both in flight from the post to `Work.wait`. Every
   * rank still receives exactly the rows that it requires, each once. No effect if `hosts` is unknown, if there is only
   * one host, or if each has only one rank. Default false.
   */
  readonly hierarchical?: boolean;
}

/** Options of groupReduce. */
export interface GroupReduceOptions extends CollectiveOptions {
  /**
   * The dtype of messages; accumulation is in float32. "bfloat16" rounds each rank's rows once and halves the bytes.
   * Default "float32".
   */
  readonly wire?: "float32" | "bfloat16";
}

/**
 * Payload in bytes sent and received by this rank since the group was created, and number of messages sent. An
 * operation is counted as a whole when it is done. Operations that are only posted or in flight are not counted.
 */
export interface Traffic {
  readonly bytesSent: number;
  readonly bytesReceived: number;
  readonly messagesSent: number;
}

/**
 * A set of ranks that communicate with one another. Every rank of the group must call the same operations in the same
 * order.
 *
 * Operations are asynchronous. Each begins when the work enqueued so far on the device's compute stream is done, and
 * runs on the communication stream. `Work.wait` orders it before later compute. Tensors must be contiguous and on the
 * group's device. Reductions sum in rank order with float32 accumulation, so that the results are bitwise equal on all
 * ranks.
 *
 * Autograd does not record these operations. Gradients pass through an in-place operation unchanged, and stop at the
 * outputs of all others. `functionalCollectives` has differentiable collectives.
 *
 * `CheckedGroup` (checked-group.ts) validates the operands and passes the call on: to `NativeGroup` of @mosaic/runtime,
 * whose engine drives a transport, or to the planner's `SymbolicGroup`, which records it.
 */
export interface ProcessGroup extends AsyncDisposable {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  /** World ranks of the members, by rank in the group. */
  readonly ranks: readonly number[];
  /** The host of each member, by rank in the group. Members on the same host have equal numbers. Absent if unknown. */
  readonly hosts?: readonly number[];
  /** Seconds that a collective may take before it fails with CollectiveTimeoutError. Infinity: there is no limit. */
  readonly timeout: number;
  readonly device: Device;
  /** Posts all sends and receives as one batch. Their order matters only between the same two ranks. */
  sendRecv(transfers: readonly Transfer[], options?: CollectiveOptions): Work;
  /** `out` receives every rank's flattened input, concatenated in rank order. */
  allGather(out: Tensor, input: Tensor, options?: GatherOptions): Work;
  /**
   * `out` receives this rank's share of the reduction of all ranks' inputs. The flattened result is split in rank
   * order.
   */
  reduceScatter(out: Tensor, input: Tensor, op?: ReduceOp, options?: GatherOptions): Work;
  /** Reduces x over all ranks, in place. */
  allReduce(x: Tensor, op?: ReduceOp, options?: CollectiveOptions): Work;
  allToAll(out: Tensor, input: Tensor, options?: AllToAllOptions): Work;
  /** Copies the root's x to x of every other rank. */
  broadcast(x: Tensor, root: number, options?: CollectiveOptions): Work;
  barrier(options?: CollectiveOptions): Work;
  /**
   * Sends rows, the second to last axis of [..., rows, width], to the ranks that require them, each row once per
   * receiver. `out` receives the rows of sender 0 with its ranges in order, then those of sender 1, and so on. All
   * tensors of an operation are sent together; out[i] and input[i] differ only in rows. The rows are in `out` after
   * `Work.wait`, which must be called.
   *
   * @throws OptionError, ShapeError or DTypeError before anything is posted. Ranks with different plans or tensors fail
   * with a CollectiveMismatchError that names both calls.
   */
  groupCast(out: readonly Tensor[], input: readonly Tensor[], plan: GroupCastPlan, options?: GroupCastOptions): Work;
  /**
   * The transpose of groupCast, for float32. `input` has the rows that a groupCast of the plan received, `out` the rows
   * that it sent. Each row returns to its owner. `Work.wait`, which must be called, adds the rows to `out`, one
   * receiver after the other in rank order. Every receiver's row is sent separately, also between hosts, because a
   * partial sum per host would round differently.
   */
  groupReduce(
    out: readonly Tensor[],
    input: readonly Tensor[],
    plan: GroupCastPlan,
    options?: GroupReduceOptions,
  ): Work;
  /**
   * Records a call that is not a collective but that every rank of the group must make identically, such as attention
   * with its mask and placement. Nothing is sent for it. It becomes part of the group's history, which the next message
   * or barrier and `close` compare. Ranks whose descriptions differ fail with a CollectiveMismatchError that contains
   * both. `description` is the text of everything that must agree, identical on every rank, or a function that composes
   * it, called only if calls are compared. Error messages contain its first 1000 bytes.
   */
  recordCall(description: string | (() => string)): void;
  /**
   * Splits the group. Ranks with the same color form a new group, ordered by their rank in this one. Collective;
   * resolves on every rank.
   */
  split(color: number, name?: string): Promise<ProcessGroup>;
  /**
   * Returns the traffic of all operations that are done. To include everything that was posted, first call `Work.wait`
   * and `await stream.synchronize()`.
   */
  traffic(): Traffic;
  /**
   * Marks the end of a step of this rank, independent of the group; `mosaic-top` shows the step time. Nothing is sent.
   * `reduceGradients` and `generate` of @mosaic/models call it. Programs that use neither call it once per iteration of
   * their loop.
   */
  markStep(): void;
  /** Starts tracing. A trace covers the whole engine of this rank with all of its groups. */
  startTrace(): void;
  stopTrace(): Promise<readonly TraceEvent[]>;
}

/** Options that `init` passes to `Collectives.connect`. */
export interface ConnectOptions {
  readonly device: Device;
  readonly rank: number;
  readonly size: number;
  /** Seconds that a collective may take before it fails with CollectiveTimeoutError. */
  readonly timeout?: number;
}

/** An implementation of process groups: `local()`, `nccl()`, or a custom one. */
export interface Collectives {
  readonly name: string;
  /** Creates the group of all ranks. Rejects if a rank does not connect; the error names that rank. */
  connect(options: ConnectOptions): Promise<ProcessGroup>;
}
