import { checkTensor } from "../arguments.ts";
import { type Device, formatDevice, type TraceEvent } from "../device.ts";
import { ClosedError, DTypeError, OptionError, ShapeError, expectValue, formatValue } from "../errors.ts";
import { inspectAsString } from "../inspect.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { groupCastHash, rankGroupCast } from "./cast-plan.ts";
import { directRoute, hierarchicalRoute } from "./cast-route.ts";
import { parseLabel } from "./collective-options.ts";
import {
  type GroupCastContext,
  type GroupCastOperands,
  groupCastRows,
  groupReduceRows,
  type RowTransfer,
  toTransfers,
} from "./group-cast.ts";
import { checkBatchOverlap, checkOverlap } from "./overlap.ts";
import type {
  AllToAllOptions,
  CollectiveOptions,
  GatherOptions,
  GroupCastOptions,
  GroupCastPlan,
  GroupReduceOptions,
  ProcessGroup,
  ReduceOp,
  Traffic,
  Transfer,
  Work,
} from "./process-group.ts";

/** The collectives of a process group, in the order of the enum `OpKind` in native code. */
export const collectiveOps = [
  "sendRecv",
  "allGather",
  "reduceScatter",
  "allReduce",
  "allToAll",
  "broadcast",
  "barrier",
  "groupCast",
  "groupReduce",
] as const;
/** Name of a collective. */
export type CollectiveOp = (typeof collectiveOps)[number];

/** The reductions, in the order of the enum `ReduceOp` in native code. */
export const reduceOps: readonly ReduceOp[] = ["sum", "mean", "max"];

/** The validated arguments of one collective. Counts are in elements. */
export interface CollectiveCall {
  readonly op: CollectiveOp;
  readonly out?: Tensor;
  readonly input?: Tensor;
  readonly reduceOp?: ReduceOp;
  readonly root?: number;
  /** The caller passed counts, so shapes may differ between ranks. */
  readonly allowUnequalShapes?: boolean;
  /** Number of elements sent to each rank. For allGather and reduceScatter: the share of each rank. */
  readonly send?: readonly number[];
  /** allToAll: number of elements received from each rank. */
  readonly receive?: readonly number[];
  /** sendRecv, groupCast and groupReduce: the messages. */
  readonly transfers?: readonly Transfer[];
  /**
   * groupCast and groupReduce: a 53-bit hash of the plan and the tensors, which must be equal on all ranks. Expensive.
   */
  readonly planHash?: () => number;
}

/**
 * A process group that validates arguments in the same way for every engine: operands, counts, ranks and overlaps. An
 * engine implements `post`, which receives only valid calls. Errors are thrown before anything is posted, so that an
 * error on one rank does not leave others waiting in an incomplete collective.
 *
 * @example
 * ```ts
 * import { CheckedGroup, type CollectiveCall, init, singleRankGroup } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), collectives: singleRankGroup(), rank: 0, worldSize: 1 });
 * ctx.world instanceof CheckedGroup; // => true
 * ```
 */
export abstract class CheckedGroup implements ProcessGroup {
  abstract readonly name: string;
  abstract readonly rank: number;
  abstract readonly ranks: readonly number[];
  abstract readonly device: Device;
  abstract readonly timeout: number;
  declare readonly hosts?: readonly number[];

  get size(): number {
    return this.ranks.length;
  }

  static {
    inspectAsString(this.prototype);
  }

  /** Returns name, rank and device, as shown by `console.log`. */
  toString(): string {
    const { name, rank, size, device } = this;
    return `ProcessGroup ${name}, rank ${rank} of ${size} on ${formatDevice(device)}`;
  }

  /** Enqueues a collective with valid arguments. `label` is the caller's label, or "". */
  protected abstract post(call: CollectiveCall, label: string): Work;
  /**
   * As `post`, for messages that consist of rows. An engine that does not need a tensor per message can override it.
   */
  protected postRows(call: CollectiveCall, messages: readonly RowTransfer[], label: string): Work {
    const ownedTensors: Tensor[] = [];
    const work = this.post({ ...call, transfers: toTransfers(messages, ownedTensors) }, label);
    for (const tensor of ownedTensors) tensor[Symbol.dispose]();
    return work;
  }

  /** Adds a call to the group's history: see `recordCall`. */
  protected abstract record(description: () => string): void;
  /** Whether the group is closed: nothing may be posted any more. */
  protected abstract get isClosed(): boolean;

  /** Posts a collective and increments the versions of the storages that it writes. */
  #enqueue(call: CollectiveCall, label: string): Work {
    const work = this.post(call, label);
    // The root of a broadcast only reads.
    if (call.op !== "broadcast" || call.root !== this.rank) call.out?.storage.recordMutation(call.op);
    for (const transfer of call.transfers ?? [])
      if ("from" in transfer) transfer.tensor.storage.recordMutation(call.op);
    return work;
  }

  /** Does nothing by default. An engine that can be monitored overrides it. */
  markStep(): void {}

  abstract split(color: number, name?: string): Promise<ProcessGroup>;
  abstract traffic(): Traffic;
  abstract startTrace(): void;
  abstract stopTrace(): Promise<readonly TraceEvent[]>;
  abstract [Symbol.asyncDispose](): Promise<void>;

  sendRecv(transfers: readonly Transfer[], options?: CollectiveOptions): Work {
    const where = this.checkOpen("sendRecv", options);
    expectValue(where, Array.isArray(transfers), "an array of transfers", transfers);
    let hasSelfTransfer = false;
    for (const transfer of transfers) {
      expectValue(where, isTransfer(transfer), "transfers { tensor, to } or { tensor, from }", transfer);
      const peer = "to" in transfer ? transfer.to : transfer.from;
      this.#checkRank(where, peer);
      this.#checkOperand(where, transfer.tensor);
      hasSelfTransfer ||= peer === this.rank;
    }
    if (hasSelfTransfer) checkSelfTransfers(where, this.rank, transfers);
    checkBatchOverlap(where, transfers);
    return this.#enqueue({ op: "sendRecv", transfers }, options?.label ?? "");
  }

  allGather(out: Tensor, input: Tensor, options?: GatherOptions): Work {
    const where = this.#checkOperands("allGather", options, out, input);
    const send = this.#resolveCounts(where, out.size, options?.counts);
    checkSize(where, "out", out, sum(send));
    checkSize(where, "input", input, send[this.rank]!);
    checkOverlap(where, { out, input, inPlaceOffset: out.offset + sum(send.slice(0, this.rank)) });
    return this.#enqueue(
      { op: "allGather", out, input, send, allowUnequalShapes: !!options?.counts },
      options?.label ?? "",
    );
  }

  // oxlint-disable-next-line max-params -- as in PyTorch: output, input, operation, options
  reduceScatter(out: Tensor, input: Tensor, op: ReduceOp = "sum", options?: GatherOptions): Work {
    const where = this.#checkOperands("reduceScatter", options, out, input);
    checkReduceOp(where, op);
    const send = this.#resolveCounts(where, input.size, options?.counts);
    checkSize(where, "input", input, sum(send));
    checkSize(where, "out", out, send[this.rank]!);
    checkOverlap(where, { out: input, input: out, inPlaceOffset: input.offset + sum(send.slice(0, this.rank)) });
    const allowUnequalShapes = !!options?.counts;
    return this.#enqueue(
      { op: "reduceScatter", out, input, send, reduceOp: op, allowUnequalShapes },
      options?.label ?? "",
    );
  }

  allReduce(x: Tensor, op: ReduceOp = "sum", options?: CollectiveOptions): Work {
    const where = this.#checkOperands("allReduce", options, x);
    checkReduceOp(where, op);
    return this.#enqueue({ op: "allReduce", out: x, reduceOp: op }, options?.label ?? "");
  }

  allToAll(out: Tensor, input: Tensor, options?: AllToAllOptions): Work {
    const where = this.#checkOperands("allToAll", options, out, input);
    const send = this.#resolveCounts(where, input.size, options?.send);
    const receive = this.#resolveCounts(where, out.size, options?.receive);
    checkSize(where, "input", input, sum(send));
    checkSize(where, "out", out, sum(receive));
    if (send[this.rank] !== receive[this.rank]) {
      throw new OptionError({
        where,
        expected: `receive[${this.rank}] to match send[${this.rank}], ${send[this.rank]} elements`,
        received: String(receive[this.rank]),
      });
    }
    checkOverlap(where, { out, input });
    const allowUnequalShapes = !!(options?.send ?? options?.receive);
    return this.#enqueue({ op: "allToAll", out, input, send, receive, allowUnequalShapes }, options?.label ?? "");
  }

  broadcast(x: Tensor, root: number, options?: CollectiveOptions): Work {
    const where = this.#checkOperands("broadcast", options, x);
    this.#checkRank(where, root);
    return this.#enqueue({ op: "broadcast", out: x, root }, options?.label ?? "");
  }

  barrier(options?: CollectiveOptions): Work {
    this.checkOpen("barrier", options);
    return this.#enqueue({ op: "barrier" }, options?.label ?? "");
  }

  // oxlint-disable-next-line max-params -- as in MPI: output, input, what goes where, options
  groupCast(
    out: readonly Tensor[],
    input: readonly Tensor[],
    plan: GroupCastPlan,
    options: GroupCastOptions = {},
  ): Work {
    const where = this.checkOpen("groupCast", options);
    const { hierarchical = false } = options;
    const operands = this.#checkCast(where, { out, input }, plan);
    checkGroupCastRows(
      where,
      "input",
      input,
      (rows) => rows >= operands.cast.minInputRows,
      `at least ${operands.cast.minInputRows}`,
    );
    const { receivedRows } = operands.cast;
    checkGroupCastRows(where, "out", out, (rows) => rows === receivedRows, String(receivedRows));
    const { cast } = operands;
    const route = (hierarchical && hierarchicalRoute(plan, cast, this)) || directRoute(cast, this.rank);
    return this.#raiseVersions(
      "groupCast",
      out,
      groupCastRows(this.#castGroup("groupCast", operands, plan, options), operands, route),
    );
  }

  // oxlint-disable-next-line max-params -- as groupCast
  groupReduce(
    out: readonly Tensor[],
    input: readonly Tensor[],
    plan: GroupCastPlan,
    options: GroupReduceOptions = {},
  ): Work {
    const where = this.checkOpen("groupReduce", options);
    const { wire = "float32" } = options;
    const operands = this.#checkCast(where, { out, input }, plan);
    for (const { dtype } of out) {
      if (dtype !== "float32") throw new DTypeError({ where, expected: "tensors of float32", received: dtype });
    }
    const { receivedRows, minInputRows } = operands.cast;
    checkGroupCastRows(where, "input", input, (rows) => rows === receivedRows, String(receivedRows));
    checkGroupCastRows(where, "out", out, (rows) => rows >= minInputRows, `at least ${minInputRows}`);
    return this.#raiseVersions(
      "groupReduce",
      out,
      groupReduceRows(this.#castGroup("groupReduce", operands, plan, options), operands, wire),
    );
  }

  recordCall(description: string | (() => string)): void {
    if (!this.isClosed && typeof description === "function") return this.record(description);
    const where = this.checkOpen("recordCall");
    if (typeof description === "string" && description !== "") return this.record(() => description);
    throw new OptionError({ where, expected: "a description of the call", received: formatValue(description) });
  }

  /**
   * Returns the text that identifies a call of this group in messages, such as `ring(sp), rank 3: sendRecv (world)`.
   * Throws a ClosedError if the group is closed.
   */
  protected checkOpen(operation: string, options?: CollectiveOptions): string {
    if (this.isClosed) {
      throw new ClosedError({
        where: `${operation} (${this.name})`,
        expected: "an open group",
        received: "a closed group",
        remedy: "finish all communication before the group goes out of scope",
      });
    }
    const where = `rank ${this.ranks[this.rank]}: ${operation} (${this.name})`;
    if (options === undefined) return where;
    const label = parseLabel(operation, options, where);
    return label === undefined ? where : `${label}, ${where}`;
  }

  /** Throws an OptionError unless `color` and `name` are valid arguments of `split`. */
  protected checkSplit(color: number, name: string): void {
    const where = this.checkOpen("split");
    expectValue(where, Number.isSafeInteger(color), "an integer color", color);
    expectValue(where, typeof name === "string", "a name that is a string", name);
  }

  #checkOperands(operation: string, options: CollectiveOptions | undefined, ...tensors: readonly Tensor[]): string {
    const where = this.checkOpen(operation, options);
    for (const x of tensors) this.#checkOperand(where, x);
    const [out, input] = tensors as readonly [Tensor, Tensor?];
    if (input === undefined) return where;
    if (out.dtype !== input.dtype) {
      throw new DTypeError({ where, expected: `out with the dtype of input, ${input.dtype}`, received: out.dtype });
    }
    return where;
  }

  /** Checks that out and input are pairs of tensors [..., rows, width] that differ only in rows and share no memory. */
  #checkCast(where: string, { out, input }: Omit<GroupCastOperands, "cast">, plan: GroupCastPlan): GroupCastOperands {
    const areMatchingArrays =
      Array.isArray(out) && Array.isArray(input) && out.length > 0 && out.length === input.length;
    expectValue(where, areMatchingArrays, "out and input as non-empty arrays of the same length", [out, input]);
    const cast = rankGroupCast(where, plan, this);
    for (const [i, x] of input.entries()) {
      this.#checkOperand(where, x);
      this.#checkOperand(where, out[i]!);
      checkGroupCastPair(where, i, out[i]!, x);
    }
    checkBatchOverlap(where, [
      ...out.map((tensor) => ({ tensor, from: this.rank })),
      ...input.map((tensor) => ({ tensor, to: this.rank })),
    ]);
    return { out, input, cast };
  }

  // oxlint-disable-next-line max-params -- of which operation, on what, by which plan, called by whom
  #castGroup(
    op: "groupCast" | "groupReduce",
    { input }: GroupCastOperands,
    plan: GroupCastPlan,
    { label = "" }: CollectiveOptions,
  ): GroupCastContext {
    return {
      group: this,
      post: (messages, operationCode) => {
        const planHash = (): number => groupCastHash(plan, operationCode, input);
        const work = this.postRows({ op, input: input[0]!, allowUnequalShapes: true, planHash }, messages, label);
        for (const { tensor, isSend } of messages) if (!isSend) tensor.storage.recordMutation(op);
        return work;
      },
    };
  }

  #raiseVersions(op: CollectiveOp, tensors: readonly Tensor[], work: Work): Work {
    for (const { storage } of tensors) storage.recordMutation(op);
    return work;
  }

  /** Checks that x is a contiguous tensor on the group's device, so that it can be sent or received without a copy. */
  #checkOperand(where: string, x: Tensor): void {
    checkTensor(where, x);
    const { device } = this;
    if (x.device !== device) {
      throw new OptionError({
        where,
        expected: `a tensor on the group's device, ${formatDevice(device)}`,
        received: `a tensor on ${formatDevice(x.device)}${x.device.type === device.type ? " of a different Device instance" : ""}`,
        remedy: "create the tensor on this rank's context",
      });
    }
    if (x.isContiguous) return;
    throw new ShapeError({
      where,
      expected: "a contiguous tensor",
      received: `${formatShape(x.shape)} with strides ${formatShape(x.strides)}`,
      remedy: "call contiguous() first",
    });
  }

  /** Returns counts by rank: those passed, or equal shares of `total` elements. */
  #resolveCounts(where: string, total: number, counts?: readonly number[]): readonly number[] {
    const { size } = this;
    if (!counts) {
      if (total % size === 0) return new Array<number>(size).fill(total / size);
      throw new ShapeError({
        where,
        expected: `a number of elements divisible by the group size, ${size}`,
        received: String(total),
        remedy: "pass counts for unequal shards",
      });
    }
    if (
      Array.isArray(counts) &&
      counts.length === size &&
      counts.every((count) => Number.isSafeInteger(count) && count >= 0)
    )
      return counts;
    throw new ShapeError({ where, expected: `${size} counts, integers ≥ 0`, received: formatValue(counts) });
  }

  #checkRank(where: string, rank: number): void {
    if (Number.isInteger(rank) && rank >= 0 && rank < this.size) return;
    throw new OptionError({ where, expected: `a rank from 0 to ${this.size - 1}`, received: formatValue(rank) });
  }
}

/**
 * Returns whether a value is a transfer in exactly one direction, `to` or `from`. A send and a receive are two
 * transfers.
 */
function isTransfer(transfer: unknown): boolean {
  return typeof transfer === "object" && transfer !== null && "to" in transfer !== "from" in transfer;
}

function checkReduceOp(where: string, op: ReduceOp): void {
  if (reduceOps.includes(op)) return;
  throw new OptionError({ where, expected: "sum, mean or max", received: formatValue(op) });
}

// oxlint-disable-next-line max-params -- the parts of one sentence
function checkSize(where: string, name: string, x: Tensor, size: number): void {
  if (x.size === size) return;
  throw new ShapeError({
    where,
    expected: `${name} with ${size} elements`,
    received: `${formatShape(x.shape)}, ${x.size} elements`,
  });
}

/** Checks dtype and shape of pair i of a groupCast or groupReduce. */
// oxlint-disable-next-line max-params -- which pair
function checkGroupCastPair(where: string, i: number, out: Tensor, input: Tensor): void {
  const tensorLabel = `${where}: tensor ${i}`;
  if (out.dtype !== input.dtype) {
    throw new DTypeError({
      where: tensorLabel,
      expected: `out with the dtype of input, ${input.dtype}`,
      received: out.dtype,
    });
  }
  const axis = input.shape.length - 2;
  if (axis >= 0 && out.shape.length === input.shape.length) {
    if (input.shape.every((length, each) => each === axis || length === out.shape[each])) return;
  }
  throw new ShapeError({
    where: tensorLabel,
    expected: "out and input [..., rows, width] with the same shape except for rows",
    received: `${formatShape(out.shape)} and ${formatShape(input.shape)}`,
  });
}

// oxlint-disable-next-line max-params -- the parts of one sentence
function checkGroupCastRows(
  where: string,
  name: string,
  tensors: readonly Tensor[],
  isValidRowCount: (rows: number) => boolean,
  expected: string,
): void {
  for (const [i, { shape }] of tensors.entries()) {
    if (isValidRowCount(shape.at(-2)!)) continue;
    throw new ShapeError({
      where,
      expected: `${name}[${i}] with ${expected} rows, as in the plan`,
      received: formatShape(shape),
    });
  }
}

const formatTransfer = ({ tensor }: Transfer): string => `${tensor.dtype} ${formatShape(tensor.shape)}`;

/** Checks that a rank's sends to itself match its receives from itself in order. They are performed as copies. */
function checkSelfTransfers(where: string, rank: number, transfers: readonly Transfer[]): void {
  const sends = transfers.filter((transfer) => "to" in transfer && transfer.to === rank).map(formatTransfer);
  const receives = transfers.filter((transfer) => "from" in transfer && transfer.from === rank).map(formatTransfer);
  if (sends.length === receives.length && sends.every((each, i) => each === receives[i])) return;
  throw new ShapeError({
    where,
    expected: `receives from this rank that match its sends to itself: ${sends.join(", ") || "none"}`,
    received: receives.join(", ") || "none",
  });
}

function sum(counts: readonly number[]): number {
  let total = 0;
  for (const count of counts) total += count;
  return total;
}
