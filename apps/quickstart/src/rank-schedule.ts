import { dtypeBytes, positions } from "@mosaic/attention/core";
import type { AttentionRecord, RecordedRank, TapeReader } from "@mosaic/attention/planner";

/** Name of the content of rows, for example "K, V", and the ranks that own the rows. */
interface TensorContent {
  readonly name: string;
  /** Ranks, in order. */
  readonly owners: readonly number[];
}

/** Content of a storage at some time, and its total number of rows. */
interface StoredContent extends TensorContent {
  readonly rows: number;
}

interface TimestampedValue<T> {
  readonly time: number;
  readonly value: T;
}

/** Contents of one rank's memory over time, as far as its events show. Times only increase. */
class StorageHistory {
  readonly #initialContent: StoredContent;
  readonly #allocations = new Map<number, number[]>();
  readonly #contentHistory = new Map<string, TimestampedValue<StoredContent>[]>();
  readonly #copySources = new Map<string, TimestampedValue<number>[]>();
  readonly #receipts = new Map<string, TimestampedValue<undefined>[]>();

  /** `initialContent` is the content of memory that no event names, which can only be the rank's own. */
  constructor(initialContent: StoredContent) {
    this.#initialContent = initialContent;
  }

  /** Records that a storage ID refers to new memory from this time on. Times must not decrease from call to call. */
  recordAllocation(storageId: number, time: number): void {
    const times = this.#allocations.get(storageId);
    if (times) times.push(time);
    else this.#allocations.set(storageId, [time]);
  }

  /** Records that attention read the storage, or added to it, as this content. */
  recordUse(storageId: number, time: number, value: StoredContent): void {
    appendEvent(this.#contentHistory, this.#allocationKey(storageId, time), { time, value });
  }

  /** Records that the storage was copied from another. */
  recordCopy(storageId: number, time: number, sourceStorageId: number): void {
    appendEvent(this.#copySources, this.#allocationKey(storageId, time), { time, value: sourceStorageId });
  }

  /** Records that a message is received into the storage. */
  recordReceive(storageId: number, time: number): void {
    appendEvent(this.#receipts, this.#allocationKey(storageId, time), { time, value: undefined });
  }

  /**
   * Returns the content of a storage at a time. Attention events name their operands, so the content is that of the
   * last use, unless a message was received since. Otherwise it is that of the next use before the next receive, or
   * else that of the storage from which it was copied.
   */
  contentAt(storageId: number, time: number): StoredContent {
    const allocationKey = this.#allocationKey(storageId, time);
    const receipts = this.#receipts.get(allocationKey) ?? [];
    const previousReceipt = receipts.findLast((receipt) => receipt.time < time)?.time ?? -1;
    const nextReceipt = receipts.find((receipt) => receipt.time > time)?.time ?? Number.POSITIVE_INFINITY;
    const uses = this.#contentHistory.get(allocationKey) ?? [];
    const nearestUse =
      uses.findLast((use) => use.time < time && use.time > previousReceipt) ??
      uses.find((use) => use.time > time && use.time < nextReceipt);
    if (nearestUse) return nearestUse.value;
    const copy = this.#copySources.get(allocationKey)?.findLast((copyEvent) => copyEvent.time < time);
    return copy ? this.contentAt(copy.value, copy.time) : this.#initialContent;
  }

  /** Returns a unique key of the memory at a time, because storage IDs are reused. */
  #allocationKey(storageId: number, time: number): string {
    const previousAllocations = (this.#allocations.get(storageId) ?? []).filter(
      (allocationTime) => allocationTime <= time,
    );
    return `${storageId}/${previousAllocations.length}`;
  }
}

function appendEvent<T>(
  eventsByAllocation: Map<string, TimestampedValue<T>[]>,
  allocationKey: string,
  event: TimestampedValue<T>,
): void {
  const events = eventsByAllocation.get(allocationKey);
  if (events) events.push(event);
  else eventsByAllocation.set(allocationKey, [event]);
}

/** A block of attention: the ranks that own its queries, and the ranks that own its keys and values. */
export interface Tile {
  /** Ranks, in order. */
  readonly queries: readonly number[];
  readonly keys: readonly number[];
  readonly isBackward: boolean;
  /** Stage in which the keys were received, from 1, of a backend with stages. Absent for local keys. */
  readonly stage?: number;
}

/** Rows that one batch of messages sends to one rank. */
export interface Payload extends TensorContent {
  readonly receiver: number;
  readonly bytes: number;
}

/** One batch of messages. */
export interface MessageBatch {
  /** Label of the sender, for example "ring(sp)". */
  readonly label: string;
  readonly bytes: number;
  readonly isBackward: boolean;
  /** Stage of the batch, from 1, of a backend with stages. */
  readonly stage?: number;
  readonly payloads: readonly Payload[];
}

/** Tiles and messages of one rank, in order. Traces have times, but not these contents. */
export interface RankSchedule {
  readonly rank: number;
  readonly tiles: readonly Tile[];
  readonly batches: readonly MessageBatch[];
}

/** Converts a record to schedules, one for each rank, with or without the backward. */
export function rankSchedules(record: AttentionRecord, includesBackward: boolean): readonly RankSchedule[] {
  const findOwners = createOwnerFinder(record);
  return record.ranks.map((rank) => new ScheduleReader(record, rank, findOwners).read(includesBackward));
}

/** Returns a function that finds the owners of rows, given by their index in `interned.rows`. */
function createOwnerFinder({ ranks, queries, interned }: AttentionRecord): (rowsId: number) => readonly number[] {
  const ownerByRow = new Int32Array(queries.length);
  for (const { at, tape } of ranks)
    for (const position of positions(queries.spans(at))) ownerByRow[position] = tape.rank;
  const cachedOwners = new Map<number, readonly number[]>();
  return (rowsId) => {
    let owners = cachedOwners.get(rowsId);
    if (!owners) {
      const distinctOwners = new Set<number>();
      for (const position of positions(interned.rows[rowsId]!)) distinctOwners.add(ownerByRow[position]!);
      owners = [...distinctOwners].toSorted((a, b) => a - b);
      cachedOwners.set(rowsId, owners);
    }
    return owners;
  };
}

/** Reads one rank's tape twice, because the content of memory may depend on its later use. */
class ScheduleReader {
  readonly #record: AttentionRecord;
  readonly #rank: RecordedRank;
  readonly #findOwners: (rowsId: number) => readonly number[];
  readonly #history: StorageHistory;

  // oxlint-disable-next-line max-params -- the record, one rank of it, and what was found out about all
  constructor(record: AttentionRecord, rank: RecordedRank, findOwners: (rowsId: number) => readonly number[]) {
    this.#record = record;
    this.#rank = rank;
    this.#findOwners = findOwners;
    this.#history = new StorageHistory({ name: "statistics", owners: [rank.tape.rank], rows: 0 });
    const inputs = Object.entries({ q: "Q", k: "K, V", v: "K, V", dOut: "dOut" } as const).map(
      ([inputName, operandName]) => [this.#storageId(rank.tensorViews[inputName as "q"]), operandName] as const,
    );
    const unclaimedInputs = new Map<number, string>(inputs);
    this.#forEachEvent((event, time) => {
      this.#recordContent(event, time);
      if (event.op !== "empty") return;
      const name = unclaimedInputs.get(event.arg(0));
      if (name) this.#history.recordUse(event.arg(0), time, { name, owners: [rank.tape.rank], rows: 0 });
      unclaimedInputs.delete(event.arg(0));
    });
  }

  read(includesBackward: boolean): RankSchedule {
    const { interned } = this.#record;
    const tiles: Tile[] = [];
    const batches: MessageBatch[] = [];
    let isBackward = false;
    const stages = new StageReader(this.#rank.tape.rank);
    this.#forEachEvent((event, time) => {
      if (event.op === "mark") isBackward ||= interned.strings[event.arg(0)] === "backward";
      if (isBackward && !includesBackward) return;
      if (event.op === "attend" || event.op === "attendBackward") {
        const [queries, keys] = readRowSetIds(event);
        const owners = this.#findOwners(keys);
        tiles.push({ queries: this.#findOwners(queries), keys: owners, isBackward, ...stages.findStage(owners) });
      }
      if (event.op === "wait") stages.wait(event.arg(0));
      const label = isBatch(event) ? interned.strings[event.arg(2)]! : "";
      const stage = isBatch(event) ? stages.post(event.arg(0), label) : {};
      const payloads = isBatch(event) ? this.#readPayloads(event, time) : [];
      const bytes = payloads.reduce((sum, payload) => sum + payload.bytes, 0);
      if (bytes > 0) batches.push({ label, bytes, isBackward, payloads, ...stage });
    });
    return { rank: this.#rank.tape.rank, tiles, batches };
  }

  /** Visits all events with their indices as times, because offsets on the tape are not consecutive. */
  #forEachEvent(visit: (event: TapeReader, time: number) => void): void {
    const event = this.#rank.tape.read();
    for (let time = 0; event.next(); time++) visit(event, time);
  }

  /** Records what an event reveals about memory: attention names its operands; copies and messages move contents. */
  #recordContent(event: TapeReader, time: number): void {
    const history = this.#history;
    const recordOperand = (argIndex: number, name: string, rowsId: number): void => {
      const length = positions(this.#record.interned.rows[rowsId]!).length;
      history.recordUse(this.#storageId(event.arg(argIndex)), time, {
        name,
        owners: this.#findOwners(rowsId),
        rows: length,
      });
    };
    if (event.op === "empty") history.recordAllocation(event.arg(0), time);
    else if (event.op === "attend" || event.op === "attendBackward") {
      const [queries, keys] = readRowSetIds(event);
      for (const [i, operandName] of operandNames[event.op].entries())
        recordOperand(i, operandName, keyNames.has(operandName) ? keys : queries);
    } else if (event.op === "copy") {
      history.recordCopy(this.#storageId(event.arg(0)), time, this.#storageId(event.arg(1)));
    } else if (isBatch(event)) {
      for (const { isSend, view } of listTransfers(event)) {
        if (!isSend) history.recordReceive(this.#storageId(view), time);
      }
    }
  }

  /** Returns the payloads of a batch. All parts of one content that are sent to one rank form one payload. */
  #readPayloads(event: TapeReader, time: number): readonly Payload[] {
    const payloads = new Map<string, Payload>();
    for (const { isSend, peer, view } of listTransfers(event)) {
      if (!isSend) continue;
      const { layout, dtype } = this.#rank.tape.views[view]!;
      const { name, owners, rows } = this.#history.contentAt(this.#storageId(view), time);
      // Part of the rows of several ranks: local rows, or results that return to their owner.
      const hasPartialRows = layout.shape[0] !== rows && layout.shape[2] !== rows;
      const resultOwner = resultNames.has(name) ? peer : this.#rank.tape.rank;
      const senders = hasPartialRows && owners.includes(resultOwner) ? [resultOwner] : owners;
      // One number per row: lse or delta.
      const payload = { name: layout.shape.length === 3 ? "statistics" : name, owners: senders, receiver: peer };
      const key = Object.values(payload).join();
      const bytes = layout.size * dtypeBytes[dtype] + (payloads.get(key)?.bytes ?? 0);
      payloads.set(key, { ...payload, bytes });
    }
    return [...payloads.values()];
  }

  #storageId(view: number): number {
    return this.#rank.tape.storageIdByView[view]!;
  }
}

/** Tracks the stages of a rank by the labels of its messages, for example "flex(sp) stage 2: keys". */
class StageReader {
  readonly #rank: number;
  /** Stages whose keys are in flight, by work ID. */
  readonly #postedStages = new Map<number, number>();
  #lastArrivedStage: number | undefined;

  constructor(rank: number) {
    this.#rank = rank;
  }

  /** Records that a batch is posted, and returns its stage. */
  post(workId: number, label: string): { readonly stage?: number } {
    const [, digits, contentName] = / stage (\d+): (\w+)$/.exec(label) ?? [];
    if (digits === undefined) return {};
    if (contentName === "keys") this.#postedStages.set(workId, Number(digits));
    return { stage: Number(digits) };
  }

  wait(workId: number): void {
    this.#lastArrivedStage = this.#postedStages.get(workId) ?? this.#lastArrivedStage;
  }

  /** Returns the stage in which the keys of these ranks that are attended to now were received. */
  findStage(owners: readonly number[]): { readonly stage?: number } {
    const areLocalKeys = owners.length === 1 && owners[0] === this.#rank;
    return areLocalKeys || this.#lastArrivedStage === undefined ? {} : { stage: this.#lastArrivedStage };
  }
}

/** Names of the operands of attention, in the order of the tape. */
const operandNames = {
  attend: ["out", "lse", "Q", "K, V", "K, V"],
  attendBackward: ["dQ", "dK, dV", "dK, dV", "Q", "dOut", "delta", "delta", "K, V", "K, V"],
} as const;
const resultNames: ReadonlySet<string> = new Set(["out", "lse", "dQ", "dK, dV"]);
const keyNames: ReadonlySet<string> = new Set(["K, V", "dK, dV"]);

/** Returns the IDs of the query rows and key rows, which follow the operands. */
function readRowSetIds(event: TapeReader): readonly [number, number] {
  const numOperands = operandNames[event.op as "attend"].length;
  return [event.arg(numOperands), event.arg(numOperands + 1)];
}

/** Returns whether an event is a batch of messages. */
function isBatch({ op }: TapeReader): boolean {
  return op === "sendRecv" || op === "groupCast" || op === "groupReduce";
}

function* listTransfers(event: TapeReader): Generator<{ isSend: boolean; peer: number; view: number }> {
  for (let i = 3; i < event.count; i += 3) {
    yield { peer: event.arg(i), isSend: event.arg(i + 1) === 1, view: event.arg(i + 2) };
  }
}
