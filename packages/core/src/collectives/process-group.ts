import type { Device, TraceEvent } from "../device.ts";
import type { Tensor } from "../tensor.ts";

/** One message of a batch; ranks are those of the group. */
export type Transfer =
  | { readonly tensor: Tensor; readonly to: number }
  | { readonly tensor: Tensor; readonly from: number };
/** How a reduction combines; float32, in rank order. */
export type ReduceOp = "sum" | "mean" | "max";

/** A collective under way. It keeps its tensors' memory alive until it is done. */
export interface Work {
  /**
   * Later work on the device's compute stream runs after this collective. The host does not wait for it; on CUDA only until
   * it is enqueued, which a `split` posted before it delays until the other ranks have called theirs. Called at most once.
   */
  wait(): void;
}

/** What any collective takes. */
export interface CollectiveOptions {
  /** Name of the caller, shown in messages and traces: `ring(sp)`. */
  readonly label?: string;
}
/** Shares of allGather and reduceScatter. */
export interface GatherOptions extends CollectiveOptions {
  /** Elements that each rank holds, by rank; equal shares if absent. */
  readonly counts?: readonly number[];
}
/** Shares of allToAll. */
export interface AllToAllOptions extends CollectiveOptions {
  /** Elements sent to, and received from, each rank, by rank; equal shares if absent. */
  readonly send?: readonly number[];
  readonly receive?: readonly number[];
}

/** Rows [start, start + length). */
export interface RowRange {
  readonly start: number;
  readonly length: number;
}

/**
 * Which rows of each rank's input every rank receives: the same on all ranks of the group. A group verifies the ranges of its own
 * rank, and hashes those of all ranks, at its first call with a plan object: use one object again for the same plan.
 */
export interface GroupCastPlan {
  /** Ranks. */
  readonly size: number;
  /** Local rows of `sender`'s input that `receiver` obtains: ascending, disjoint, not empty; none for sender = receiver. */
  ranges(sender: number, receiver: number): readonly RowRange[];
}

/** How rows travel in a groupCast. */
export interface GroupCastOptions extends CollectiveOptions {
  /**
   * A row that several ranks of another host require crosses once, to one of them, which forwards it to the others: two batches of
   * messages, one behind the other, both under way from the post to `Work.wait`. Every rank still receives what it requires, each
   * row once. No effect where `hosts` are not known, are one, or have one rank each. Default false.
   */
  readonly hierarchical?: boolean;
}

/** How rows travel in a groupReduce. */
export interface GroupReduceOptions extends CollectiveOptions {
  /** The dtype of messages; sums are float32. "bfloat16" rounds each rank's rows once and halves the bytes. Default "float32". */
  readonly wire?: "float32" | "bfloat16";
}

/**
 * Payload moved by this rank since the group was made, in bytes, and messages sent. An operation counts, as a whole, when it
 * is done; what has only been posted, or is on its way, does not.
 */
export interface Traffic {
  readonly bytesSent: number;
  readonly bytesReceived: number;
  readonly messagesSent: number;
}

/**
 * The ranks that communicate with one another. Every rank of the group calls the same operations in the same order.
 *
 * Operations return at once: each begins when the work enqueued so far on the device's compute stream is done, runs on the
 * communication stream, and is ordered before later compute by `Work.wait`. Tensors must be contiguous and on the group's
 * device. Reductions sum in rank order with float32 accumulation: all ranks get the same bits.
 * Autograd does not record them: a gradient passes an operation in place as if it were not there, and ends at what others
 * write. `defineOp` makes differentiable ones: docs/coming-from.md has an example.
 *
 * `CheckedGroup` (checked-group.ts) validates the operands and passes the call on: to `NativeGroup` of @mosaic/runtime, whose engine
 * drives a transport, or to the planner's `SymbolicGroup`, which records it.
 */
export interface ProcessGroup extends AsyncDisposable {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  /** World ranks of the members, by rank in the group. */
  readonly ranks: readonly number[];
  /** The host of each member, by rank in the group: numbers that are equal on one host. Absent: not known. */
  readonly hosts?: readonly number[];
  readonly device: Device;
  /** Posts all sends and receives as one batch; their order does not matter, except between the same two ranks. */
  sendRecv(transfers: readonly Transfer[], options?: CollectiveOptions): Work;
  /** out: every rank's input, concatenated flat in rank order. */
  allGather(out: Tensor, input: Tensor, options?: GatherOptions): Work;
  /** out: this rank's share of the reduction of all ranks' inputs, which are cut flat in rank order. */
  reduceScatter(out: Tensor, input: Tensor, op?: ReduceOp, options?: GatherOptions): Work;
  /** In place. */
  allReduce(x: Tensor, op?: ReduceOp, options?: CollectiveOptions): Work;
  allToAll(out: Tensor, input: Tensor, options?: AllToAllOptions): Work;
  /** In place on every rank but the root. */
  broadcast(x: Tensor, root: number, options?: CollectiveOptions): Work;
  barrier(options?: CollectiveOptions): Work;
  /**
   * Sends rows, the last axis but one of [..., rows, width], to the ranks that require them: each row once to each of them, and to no
   * other. `out`: the rows of sender 0, its ranges in order, then those of sender 1, and so on. Tensors of an operation travel
   * together; out[i] and input[i] differ in rows only. The rows are in `out` once `Work.wait` was called, which must be called.
   *
   * @throws OptionError, ShapeError, DTypeError before anything is posted. Ranks with different plans or tensors fail with a
   * CollectiveMismatchError that names both calls.
   */
  groupCast(out: readonly Tensor[], input: readonly Tensor[], plan: GroupCastPlan, options?: GroupCastOptions): Work;
  /**
   * The transpose, of float32: `input` has the rows that a groupCast of the plan received, `out` those that it sent. Each row returns to
   * its owner, which adds it to `out`, one receiver's after the other's in rank order, when `Work.wait` is called, which must be called.
   * Every receiver's row travels by itself, also between hosts: a sum per host would have other bits.
   */
  groupReduce(
    out: readonly Tensor[],
    input: readonly Tensor[],
    plan: GroupCastPlan,
    options?: GroupReduceOptions,
  ): Work;
  /**
   * Records a call that every rank of the group makes alike, though it is no collective, such as one of attention with its
   * mask and its placement. Nothing is sent for it: it becomes part of the group's history, which the next message or
   * barrier compares, and `close`. Ranks whose descriptions differ fail with a CollectiveMismatchError that has both.
   * `description`: all that must agree, as text of the same characters on every rank, or a function that composes it, called
   * only where calls are compared; messages have the first 1000 bytes.
   */
  recordCall(description: string | (() => string)): void;
  /** Collective: ranks with the same color form a group, ordered by their rank here. Resolves on every rank. */
  split(color: number, name?: string): Promise<ProcessGroup>;
  /**
   * What the operations that are done by now moved. To have all in it that was posted, wait for them first: `Work.wait`, then
   * `await stream.synchronize()`.
   */
  traffic(): Traffic;
  /**
   * Marks the end of a step of this rank, of whichever group: what `mosaic-top` shows as step time. Nothing is sent. `reduceGradients`
   * and `generate` of @mosaic/models do so; a program of another shape calls it once in its loop.
   */
  markStep(): void;
  /** Tracing covers the whole engine of this rank, all of its groups. */
  startTrace(): void;
  stopTrace(): Promise<readonly TraceEvent[]>;
}

/** What `init` passes to collectives about a rank. */
export interface ConnectOptions {
  readonly device: Device;
  readonly rank: number;
  readonly size: number;
  /** Seconds that a collective may take before it fails with CollectiveTimeoutError. */
  readonly timeout?: number;
}

/** A way to connect ranks: `local()`, `nccl()`, yours. */
export interface Collectives {
  readonly name: string;
  /** The group of all ranks. Rejects when some rank does not come, naming it. */
  connect(options: ConnectOptions): Promise<ProcessGroup>;
}
