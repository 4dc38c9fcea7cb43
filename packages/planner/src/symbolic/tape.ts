import { type CollectiveOp, collectiveOps } from "@mosaic/core";

/**
 * Operations on the tape of a rank. The index in this list is the operation's code, and the names are those of the
 * contracts. Each operation has the following arguments, in order, with operands as in the kernel schema. A *view* is
 * an index into `RankRecord.views`, *rows* are an index into `InternPool.rows`, and so on.
 *
 * - empty, free: storage
 * - mark: name
 * - attend: out lse q k v (views), rows of q, rows of k, mask
 * - attendBackward: dq dk dv q dOut lse delta k v (views), rows of q, rows of k, mask
 * - merge: out lse, out lse (views)
 * - rowDot: out a b (views); fill: out, name of the value; copy: out x; add: out a b
 * - compute (any other kernel): name, number of views that it mutates, these views, the views that it only reads,
 *   then those of the mutated views that it also reads
 * - sendRecv, groupCast, groupReduce: work, group, label, then (peer's world rank, 1 if it is sent, view) for each
 *   transfer
 * - allGather, reduceScatter, allReduce, allToAll, broadcast, barrier: work, group, label, index of the call in its
 *   group, out, input (views, −1 if none), root (of reductions: 0 sum, 1 mean, 2 max), then elements sent to and
 *   received from each rank (allToAll) or held by each
 * - wait: work
 */
export const tapeOps = [
  "empty",
  "free",
  "mark",
  "attend",
  "attendBackward",
  "merge",
  "rowDot",
  "fill",
  "copy",
  "add",
  "compute",
  ...collectiveOps,
  "wait",
] as const;
/** Operation of an event on a tape. */
export type TapeOp = (typeof tapeOps)[number];

/** Code of each operation on a tape. */
export const opcodes: Readonly<Record<TapeOp, number>> = Object.fromEntries(
  tapeOps.map((op, code) => [op, code]),
) as Record<TapeOp, number>;

const collectiveSet: ReadonlySet<TapeOp> = new Set(collectiveOps);

/** Whether an operation is a collective. Batches of messages are collectives; `wait` is not. */
export function isCollective(op: TapeOp): op is CollectiveOp {
  return collectiveSet.has(op);
}

const batchOps: ReadonlySet<TapeOp> = new Set<CollectiveOp>(["sendRecv", "groupCast", "groupReduce"]);

/**
 * Whether an operation is recorded as a batch of messages. The copies that pack and place the rows of a cast are
 * recorded separately.
 */
export function isBatch(op: TapeOp): boolean {
  return batchOps.has(op);
}

/** One event: its operation and the location of its arguments. The object is reused for every event; do not keep it. */
export interface TapeEvent {
  readonly op: TapeOp;
  readonly code: Int32Array;
  /** Index of the first argument. */
  readonly firstArgumentIndex: number;
  readonly count: number;
}

/**
 * Lengths of chunks in numbers. The first chunk is short, because most ranks of small worlds need no more; later chunks
 * grow to the maximum.
 */
const [MIN_CHUNK_LENGTH, MAX_CHUNK_LENGTH] = [256, 2 ** 14];

/**
 * Events in the order in which a rank's host enqueued them, at 4 bytes per number, because a thousand ranks record
 * millions.
 */
export class Tape {
  /** Chunks of whole events, so that nothing is copied when a tape grows. */
  readonly #fullChunks: Int32Array[] = [];
  #code = new Int32Array(MIN_CHUNK_LENGTH);
  #length = 0;
  #numEvents = 0;

  /** Number of events. */
  get events(): number {
    return this.#numEvents;
  }

  /** Appends an event. `code` is that of the operation; see `opcodes`. */
  push(code: number, args: readonly number[]): void {
    const offset = this.open(code, args.length);
    for (let i = 0; i < args.length; i++) this.#code[offset + i] = args[i]!;
  }

  /** Appends an event whose arguments are still to be set. Returns the offset of the first argument. */
  open(code: number, count: number): number {
    if (this.#length + 2 + count > this.#code.length) this.#grow(2 + count);
    const offset = this.#length + 2;
    this.#length = offset + count;
    this.#numEvents++;
    this.#code[offset - 2] = code;
    this.#code[offset - 1] = count;
    return offset;
  }

  /** Sets an argument of the event that was opened last. */
  set(offset: number, arg: number): void {
    this.#code[offset] = arg;
  }

  #grow(minLength: number): void {
    this.#fullChunks.push(this.#code.subarray(0, this.#length));
    this.#code = new Int32Array(Math.max(minLength, Math.min(MAX_CHUNK_LENGTH, 2 * this.#code.length)));
    this.#length = 0;
  }

  /** Returns a reader positioned before the first event. */
  reader(): TapeReader {
    return new TapeReader([...this.#fullChunks, this.#code.subarray(0, this.#length)]);
  }
}

/** Reads the events of a tape in order. */
export class TapeReader implements TapeEvent {
  readonly #chunks: readonly Int32Array[];
  #chunkIndex = 0;
  #nextOffset = 0;
  code: Int32Array;
  op: TapeOp = "mark";
  firstArgumentIndex = 0;
  count = 0;

  constructor(chunks: readonly Int32Array[]) {
    this.#chunks = chunks;
    this.code = chunks[0]!;
  }

  /** Advances to the next event. Returns false at the end. */
  next(): boolean {
    while (this.#nextOffset >= this.code.length) {
      if (this.#chunkIndex + 1 >= this.#chunks.length) return false;
      this.code = this.#chunks[++this.#chunkIndex]!;
      this.#nextOffset = 0;
    }
    this.op = tapeOps[this.code[this.#nextOffset]!]!;
    this.count = this.code[this.#nextOffset + 1]!;
    this.firstArgumentIndex = this.#nextOffset + 2;
    this.#nextOffset = this.firstArgumentIndex + this.count;
    return true;
  }

  /** Argument i of the event. */
  arg(i: number): number {
    return this.code[this.firstArgumentIndex + i]!;
  }
}
