import {
  CheckedGroup,
  type CollectiveCall,
  CollectiveMismatchError,
  type CollectiveOp,
  type ProcessGroup,
  reduceOps,
  type RowTransfer,
  ShapeError,
  type Storage,
  type Traffic,
  type Work,
} from "@mosaic/core";
import type { SymbolicDevice } from "./device.ts";
import type { View } from "./strided-layout.ts";
import type { RankRecord } from "./rank-record.ts";
import { isBatch, opcodes } from "./tape.ts";

/** Properties of a group that all its members share. */
export interface GroupInfo {
  readonly id: number;
  /** Equal for all groups along one axis of the mesh. */
  readonly family: number;
  readonly name: string;
  /** World ranks, by rank in the group. */
  readonly ranks: readonly number[];
  /** The host of each member; absent where hosts are not known. */
  readonly hosts?: readonly number[];
  /** Creates the group of a color once every member has passed its color. */
  readonly split: (call: SplitCall) => Promise<GroupInfo>;
}

/** Arguments of a split on one member. */
export interface SplitCall {
  readonly parent: GroupInfo;
  readonly rank: number;
  readonly color: number;
  readonly name: string;
}

/** A group that records its collectives and moves no data. */
export class SymbolicGroup extends CheckedGroup {
  readonly device: SymbolicDevice;
  readonly rank: number;
  declare readonly hosts?: readonly number[];
  /** Nothing is transferred, so nothing times out. */
  readonly timeout = Infinity;
  readonly info: GroupInfo;
  #numCalls = 0;
  #bytesSent = 0;
  #bytesReceived = 0;
  #numMessages = 0;
  #isClosed = false;

  constructor(device: SymbolicDevice, info: GroupInfo) {
    super();
    this.device = device;
    this.info = info;
    this.rank = info.ranks.indexOf(device.record.rank);
    if (info.hosts) this.hosts = info.hosts;
  }

  get name(): string {
    return this.info.name;
  }

  get ranks(): readonly number[] {
    return this.info.ranks;
  }

  protected get isClosed(): boolean {
    return this.#isClosed;
  }

  protected post(call: CollectiveCall, label: string): Work {
    const { op } = call;
    if (!isBatch(op)) return this.#collective(op, call, label || op);
    const transfers = call.transfers!.map((transfer) => {
      const isSend = "to" in transfer;
      return { tensor: transfer.tensor, rows: undefined, peer: isSend ? transfer.to : transfer.from, isSend };
    });
    return this.#batch(op, transfers, label || op);
  }

  /** Does nothing: a proof compares the tapes instead. */
  protected record(): void {}

  async split(color: number, name: string = this.name): Promise<ProcessGroup> {
    this.checkSplit(color, name);
    const childInfo = await this.info.split({ parent: this.info, rank: this.rank, color, name });
    return new SymbolicGroup(this.device, childInfo);
  }

  /** Counts point-to-point messages only. The function `count` includes the other collectives. */
  traffic(): Traffic {
    return { bytesSent: this.#bytesSent, bytesReceived: this.#bytesReceived, messagesSent: this.#numMessages };
  }

  startTrace(): void {}

  async stopTrace(): Promise<[]> {
    return [];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
  }

  /** Records messages of rows without creating tensors for millions of them. */
  protected override postRows({ op }: CollectiveCall, messages: readonly RowTransfer[], label: string): Work {
    return this.#batch(op, messages, label || op);
  }

  // oxlint-disable-next-line max-params -- operation, arguments, label, as in `post`
  #batch(op: CollectiveOp, transfers: readonly RowTransfer[], label: string): Work {
    const { record } = this.device;
    const workId = record.nextWorkId();
    const offset = record.open(opcodes[op], 3 + 3 * transfers.length);
    record.set(offset, workId);
    record.set(offset + 1, this.info.id);
    record.set(offset + 2, record.interned.stringId(label));
    const storages: Storage[] = [];
    let argumentOffset = offset + 3;
    for (const { tensor, rows, peer, isSend } of transfers) {
      const view = rows ? record.viewOfRows(tensor, rows) : record.viewOf(tensor);
      if (peer !== this.rank) this.#countMessage(isSend, record.views[view]!);
      if (storages.at(-1) !== tensor.storage && storages.at(-2) !== tensor.storage) storages.push(tensor.storage);
      record.set(argumentOffset++, this.ranks[peer]!);
      record.set(argumentOffset++, isSend ? 1 : 0);
      record.set(argumentOffset++, view);
    }
    return new SymbolicWork(record, workId, storages);
  }

  // oxlint-disable-next-line max-params -- operation, arguments, label, as in `post`
  #collective(op: CollectiveOp, call: CollectiveCall, label: string): Work {
    const { out, input = out, send = [], receive = [] } = call;
    const counts = [...send, ...receive];
    checkShardCounts(`${this.name}: ${op}`, counts);
    const { record } = this.device;
    const tensors = out && input ? [out, input] : [];
    const views = out && input ? tensors.map((tensor) => record.viewOf(tensor)) : [-1, -1];
    const root = call.root ?? (call.reduceOp ? reduceOps.indexOf(call.reduceOp) : 0);
    const workId = record.nextWorkId();
    const args = [workId, this.info.id, record.interned.stringId(label), this.#numCalls++, ...views, root, ...counts];
    record.push(opcodes[op], args);
    return new SymbolicWork(
      record,
      workId,
      tensors.map(({ storage }) => storage),
    );
  }

  #countMessage(isSend: boolean, { bytes }: View): void {
    if (isSend) {
      this.#bytesSent += bytes;
      this.#numMessages++;
    } else this.#bytesReceived += bytes;
  }
}

/** Largest number that a tape can hold, a 32-bit signed integer. */
const MAX_SHARD_SIZE = 2 ** 31 - 1;

function checkShardCounts(where: string, counts: readonly number[]): void {
  const max = counts.reduce((a, b) => Math.max(a, b), 0);
  if (max <= MAX_SHARD_SIZE) return;
  throw new ShapeError({
    where,
    expected: `send and receive counts of at most ${MAX_SHARD_SIZE} elements`,
    received: String(max),
  });
}

/**
 * A pending collective. Its memory stays allocated until `wait` is called, so that it is never freed too early, but
 * perhaps late.
 */
class SymbolicWork implements Work {
  readonly #record: RankRecord;
  readonly #workId: number;
  readonly #storages: readonly Storage[];
  #isWaited = false;

  constructor(record: RankRecord, workId: number, storages: readonly Storage[]) {
    this.#record = record;
    this.#workId = workId;
    this.#storages = storages;
    for (const storage of storages) storage.retain();
  }

  wait(): void {
    if (this.#isWaited)
      throw new CollectiveMismatchError(
        `collective #${this.#workId}: expected one call to wait(), received a second call`,
      );
    this.#isWaited = true;
    this.#record.set(this.#record.open(opcodes.wait, 1), this.#workId);
    for (const storage of this.#storages) storage.release();
  }
}
