import {
  type CollectiveCall,
  collectiveOps,
  type Device,
  dtypeBytes,
  dtypeCodes,
  reduceOps,
  type Tensor,
  type TraceEvent,
  type Work,
} from "@mosaic/core";
import { areStacksRecorded, recordCollective } from "../call-stacks.ts";
import { retainDevice } from "../device-uses.ts";
import { type ComputeOrder, type PostedCollective, recordPendingAccess } from "../pending-accesses.ts";
import { lastMismatchReport, throwUnreportedMismatch } from "../runtime.ts";
import { completions, type EngineHandle, type SplitResult, callNative, type OpenOptions } from "./addon.ts";

const noDTypeCode = Object.keys(dtypeCodes).length;

/** Returns the address of a contiguous tensor's first element, or 0 for undefined. */
function storageAddress(x: Tensor | undefined): number {
  return x ? Number(x.storage.handle) + x.offset * dtypeBytes[x.dtype] : 0;
}

/** Encodes a call as native code reads it: numbers, with each list preceded by its length. */
function encodeCall(call: CollectiveCall): Float64Array {
  const { input, out, send = [], receive = [], transfers = [] } = call;
  const operand = input ?? out;
  const words = [
    collectiveOps.indexOf(call.op),
    operand ? dtypeCodes[operand.dtype] : noDTypeCode,
    reduceOps.indexOf(call.reduceOp ?? "sum"),
    call.root ?? 0,
    call.allowUnequalShapes ? 1 : 0,
    storageAddress(out),
    storageAddress(input),
  ];
  const pushList = (values: readonly number[]) => words.push(values.length, ...values);
  pushList(operand?.shape ?? []);
  pushList(send);
  pushList(receive);
  words.push(transfers.length);
  for (const transfer of transfers) {
    const { tensor } = transfer;
    words.push("to" in transfer ? 1 : 0, "to" in transfer ? transfer.to : transfer.from);
    words.push(storageAddress(tensor), dtypeCodes[tensor.dtype]);
    pushList(tensor.shape);
  }
  words.push(call.planHash?.() ?? 0);
  return Float64Array.from(words);
}

/** Options of a rank for native code, except its transport. */
type RankOptions = Omit<OpenOptions, "transport">;

interface NativeRankFields {
  readonly device: Device;
  readonly rank: number;
  readonly timeout: number;
  readonly engine: EngineHandle;
  /** Ends the rank's use of the native device. */
  readonly releaseDevice: () => void;
  readonly hosts?: readonly number[];
  /** `lastMismatchReport()` when the rank began to open. */
  readonly lastReportAtOpen: number;
}

/**
 * Ranks that have not closed. Native code uses the memory of operands until their collectives are done, so a rank that the
 * program no longer refers to must not be garbage-collected together with its pending operations and its device.
 */
const openRanks = new Set<NativeRank>();

/** One rank of a job, with the engine to which all of its groups post. Keeps operands alive while they are in use. */
export class NativeRank {
  readonly device: Device;
  /** Seconds that a collective may take. */
  readonly timeout: number;
  /** Host number of each rank, as received in the rendezvous. */
  readonly hosts: readonly number[];
  readonly #rank: number;
  readonly #engine: EngineHandle;
  readonly #releaseDevice: () => void;
  /** Posted operations in order, except a prefix that is known to have completed. */
  #pending: PendingOperation[] = [];
  /** The engine executes operations in the order of posting, over all groups, so one number suffices. */
  readonly #order: ComputeOrder = { orderedNumber: 0 };
  /** Number of operations of each group, with splits, as native code counts them in messages. */
  readonly #groupSequences: number[] = [];
  #lastNumber = 0;
  readonly #lastReportAtOpen: number;
  #closePromise: Promise<void> | undefined;

  private constructor({
    device,
    rank,
    timeout,
    engine,
    releaseDevice,
    hosts = [],
    lastReportAtOpen,
  }: NativeRankFields) {
    this.device = device;
    this.#rank = rank;
    this.timeout = timeout;
    this.hosts = hosts;
    this.#engine = engine;
    this.#releaseDevice = releaseDevice;
    this.#lastReportAtOpen = lastReportAtOpen;
    openRanks.add(this);
  }

  /** Opens a rank. Resolves when it is connected with the others. */
  static async open(device: Device, openTransport: () => number, options: RankOptions): Promise<NativeRank> {
    let engine: EngineHandle | undefined;
    const lastReportAtOpen = lastMismatchReport();
    const { rank, timeoutSeconds: timeout } = options;
    const releaseDevice = retainDevice(device);
    try {
      await completions.expect(undefined, (completion) => {
        // Native code frees the transport even if `open` fails, so nothing may fail between the two calls.
        engine = callNative((addon) => addon.open({ ...options, transport: openTransport() }, completion));
      });
      const hosts = callNative((addon) => addon.hosts(engine!));
      return new NativeRank({ device, rank, timeout, engine: engine!, releaseDevice, hosts, lastReportAtOpen });
    } catch (error) {
      if (engine) await new NativeRank({ device, rank, timeout, engine, releaseDevice, lastReportAtOpen }).close();
      else releaseDevice();
      throw error;
    }
  }

  get isClosed(): boolean {
    return this.#closePromise !== undefined;
  }

  post(group: PostingGroup, call: CollectiveCall, label: string): Work {
    this.#releaseCompleted();
    const words = encodeCall(call);
    const number = callNative((addon) => addon.post(this.#engine, group.index, words, label));
    this.#lastNumber = number;
    const sequence = this.#countOperation(group.index);
    if (areStacksRecorded) recordCollective(`${call.op} #${sequence} (${group.name})`, this.#rank);
    const collective: PostedCollective = {
      number,
      order: this.#order,
      op: call.op,
      sequence,
      group: group.name,
      label,
    };
    recordAccesses(call, group, collective);
    const pending = new PendingOperation(this.#engine, collective, listOperands(call));
    this.#pending.push(pending);
    return pending;
  }

  /** Returns the number of an operation that was posted to a group. */
  #countOperation(group: number): number {
    return (this.#groupSequences[group] = (this.#groupSequences[group] ?? 0) + 1);
  }

  record(group: number, description: string): void {
    callNative((addon) => addon.record(this.#engine, group, description));
  }

  async split(group: number, color: number, name: string): Promise<SplitResult> {
    let operation = 0;
    try {
      await completions.expect(undefined, (completion) => {
        operation = callNative((addon) => addon.split(this.#engine, group, color, name, completion));
        this.#countOperation(group);
      });
    } catch (error) {
      // An engine that has failed has ended all operations.
      if (callNative((addon) => addon.failure(this.#engine))) setOrdered(this.#order, Infinity);
      throw error;
    }
    setOrdered(this.#order, operation);
    return callNative((addon) => addon.splitResult(this.#engine, operation));
  }

  traffic(group: number): readonly [bytesSent: number, bytesReceived: number, messagesSent: number] {
    return callNative((addon) => addon.traffic(this.#engine, group));
  }

  markStep(): void {
    const { reserved, peak } = this.device.memory();
    callNative((addon) => addon.markStep(this.#engine, reserved, peak));
  }

  startTrace(): void {
    callNative((addon) => addon.startTrace(this.#engine));
  }

  async stopTrace(): Promise<readonly TraceEvent[]> {
    let completionId = 0;
    const lastNumber = this.#lastNumber;
    await completions.expect(undefined, (completion) => {
      completionId = completion;
      callNative((addon) => addon.stopTrace(this.#engine, completion));
    });
    setOrdered(this.#order, lastNumber);
    return callNative((addon) => addon.takeTrace(completionId));
  }

  /**
   * Finishes the posted operations, then closes. Idempotent. Rejects with a CollectiveMismatchError if this rank and
   * another made different calls, unless a call of this process has already reported it.
   */
  close(): Promise<void> {
    this.#closePromise ??= this.#close();
    return this.#closePromise;
  }

  async #close(): Promise<void> {
    try {
      await completions.expect(undefined, (completion) => {
        callNative((addon) => addon.close(this.#engine, completion));
      });
      const failure = callNative((addon) => addon.failure(this.#engine));
      if (failure) throwUnreportedMismatch(...failure, this.#lastReportAtOpen);
    } finally {
      callNative((addon) => addon.release(this.#engine));
      setOrdered(this.#order, Infinity);
      this.#releaseCompleted();
      this.#releaseDevice();
      openRanks.delete(this);
    }
  }

  /** Releases the operands of completed operations. `wait` has already released most of them. */
  #releaseCompleted(): void {
    if (this.#pending.length === 0) return;
    const lastCompletedNumber = callNative((addon) => addon.completed(this.#engine));
    const firstPendingIndex = this.#pending.findIndex(({ number }) => number > lastCompletedNumber);
    for (const completedOperation of this.#pending.splice(
      0,
      firstPendingIndex < 0 ? this.#pending.length : firstPendingIndex,
    ))
      completedOperation.release();
  }
}

/** The group to which a collective is posted. */
export interface PostingGroup {
  /** Index of the group in native code. */
  readonly index: number;
  readonly name: string;
  readonly rank: number;
  readonly size: number;
}

/** Records which elements a collective writes and reads, so that compute does not access them before `wait`. */
function recordAccesses(call: CollectiveCall, { rank, size }: PostingGroup, collective: PostedCollective): void {
  const { op, out, input, root, send, transfers = [] } = call;
  const isInPlace = out !== undefined && input?.storage === out.storage;
  if (out && op === "allGather" && isInPlace && input.offset === out.offset + sumBefore(send!, rank)) {
    // Does not write this rank's shard, which is in place.
    const end = out.offset + out.size;
    recordPendingAccess(out, { collective, isWrite: true }, { start: out.offset, end: input.offset });
    recordPendingAccess(out, { collective, isWrite: true }, { start: input.offset + input.size, end });
  } else if (out && (size > 1 || (input && !(isInPlace && input.offset === out.offset)))) {
    // With one rank, a collective in place has no effect.
    recordPendingAccess(out, { collective, isWrite: !(op === "broadcast" && root === rank) });
  }
  // The messages of groupCast and groupReduce are in `transfers`. Packed rows are copies, so the input may change.
  if (input && op !== "groupCast" && op !== "groupReduce") recordPendingAccess(input, { collective, isWrite: false });
  for (const transfer of transfers) recordPendingAccess(transfer.tensor, { collective, isWrite: "from" in transfer });
}

function sumBefore(counts: readonly number[], end: number): number {
  let total = 0;
  for (let i = 0; i < end; i++) total += counts[i]!;
  return total;
}

/** Later compute runs after all operations up to `number`. */
function setOrdered(order: ComputeOrder, number: number): void {
  order.orderedNumber = Math.max(order.orderedNumber, number);
}

function listOperands({ out, input, transfers = [] }: CollectiveCall): Tensor[] {
  return [out, input, ...transfers.map(({ tensor }) => tensor)].filter((tensor) => tensor !== undefined);
}

class PendingOperation implements Work {
  readonly number: number;
  readonly #order: ComputeOrder;
  readonly #engine: EngineHandle;
  #retainedStorages: Tensor["storage"][];
  #hasWaited = false;

  constructor(engine: EngineHandle, { number, order }: PostedCollective, operands: readonly Tensor[]) {
    this.number = number;
    this.#order = order;
    this.#engine = engine;
    this.#retainedStorages = operands.map(({ storage }) => storage);
    for (const storage of this.#retainedStorages) storage.retain();
  }

  wait(): void {
    if (this.#hasWaited) return;
    callNative((addon) => addon.wait(this.#engine, this.number));
    this.#hasWaited = true;
    setOrdered(this.#order, this.number);
    // Memory is reused in stream order, and the stream now waits for this operation, so any later use comes after it.
    this.release();
  }

  release(): void {
    for (const storage of this.#retainedStorages) storage.release();
    this.#retainedStorages = [];
  }
}
