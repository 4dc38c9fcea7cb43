import { isBatch, type TapeOp, type TapeReader } from "../symbolic/tape.ts";

/** A collective that a rank posted; what it moves stands on the rank's tape. */
export class PostedBatch {
  readonly rank: number;
  /** The rank's number among those of the record. */
  readonly index: number;
  readonly op: TapeOp;
  readonly phase: string;
  readonly work: number;
  readonly group: number;
  /** Number of the word that messages call it. */
  readonly label: number;
  /** Views that it reads and writes: those of a batch's messages, or input and output of another collective. */
  readonly uses: number;
  /** Messages that have not met their other half, if it is a batch of messages. */
  open: number;
  isDone = false;
  /** Of a groupCast or groupReduce: its number among those of its group, on this rank. */
  cast = 0;
  readonly #code: Int32Array;
  /** Where its arguments after the label begin. */
  readonly #at: number;
  readonly #end: number;

  // oxlint-disable-next-line max-params -- whose it is, and where it stands
  constructor(rank: number, index: number, event: TapeReader, phase: string) {
    this.rank = rank;
    this.index = index;
    this.op = event.op;
    this.phase = phase;
    this.work = event.arg(0);
    this.group = event.arg(1);
    this.label = event.arg(2);
    this.#code = event.code;
    this.#at = event.at + 3;
    this.#end = event.at + event.count;
    this.open = isBatch(this.op) ? (event.count - 3) / 3 : 0;
    this.uses = isBatch(this.op) ? this.open : this.op === "barrier" ? 0 : 2;
  }

  // Of the messages of a batch, by number; and of the views that another collective uses, its output first.

  /** World rank of the other side. */
  peer(i: number): number {
    return this.#code[this.#at + 3 * i]!;
  }

  sends(i: number): boolean {
    return this.#code[this.#at + 3 * i + 1] === 1;
  }

  /** −1 if a collective has none. */
  view(i: number): number {
    return isBatch(this.op) ? this.#code[this.#at + 3 * i + 2]! : this.#code[this.#at + 1 + i]!;
  }

  writes(i: number): boolean {
    return isBatch(this.op) ? !this.sends(i) : i === 0;
  }

  // Of collectives other than batches of messages; see `ops`.

  /** Number of the call in its group: the same on all ranks. */
  get call(): number {
    return this.#code[this.#at]!;
  }

  get output(): number {
    return this.#code[this.#at + 1]!;
  }

  get input(): number {
    return this.#code[this.#at + 2]!;
  }

  /** Of reductions: the operation. */
  get root(): number {
    return this.#code[this.#at + 3]!;
  }

  /** Elements sent to and received from each rank (allToAll) or held by each. */
  get counts(): Int32Array {
    return this.#code.subarray(this.#at + 4, this.#end);
  }
}
