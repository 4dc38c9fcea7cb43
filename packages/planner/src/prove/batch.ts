import type { DType } from "@mosaic/core";
import type { RankRecord } from "../symbolic/rank-record.ts";
import type { StridedLayout } from "../symbolic/strided-layout.ts";
import { isBatch, type TapeOp, type TapeReader } from "../symbolic/tape.ts";
import type { Content } from "./content.ts";

/** A collective that a rank posted; what it moves stands on the rank's tape. */
export class PostedBatch {
  readonly rank: number;
  /** The rank's number among those of the record. */
  readonly index: number;
  readonly op: TapeOp;
  readonly phase: string;
  readonly workId: number;
  readonly group: number;
  /** Number of the word that messages call it. */
  readonly labelId: number;
  /** Views that it reads and writes: those of a batch's messages, or input and output of another collective. */
  readonly viewCount: number;
  /** Messages that have not met their other half, if it is a batch of messages. */
  numUnmatchedMessages: number;
  isDone = false;
  /** Of a groupCast or groupReduce: its number among those of its group, on this rank. */
  groupCollectiveIndex = 0;
  readonly #tape: RankRecord;
  readonly #isBatch: boolean;
  readonly #code: Int32Array;
  /** Where its arguments after the label begin. */
  readonly #argumentsStart: number;
  readonly #end: number;
  /** By message: what the storage of a send held when the batch began; what the sender of a receive had sent from. */
  #contents: (Content | undefined)[] = [];
  /** By receive: where in that its message begins. */
  #receiveOffsets: number[] = [];

  // oxlint-disable-next-line max-params -- whose it is, and where it stands
  constructor(tape: RankRecord, index: number, event: TapeReader, phase: string) {
    this.rank = tape.rank;
    this.#tape = tape;
    this.index = index;
    this.op = event.op;
    this.phase = phase;
    this.workId = event.arg(0);
    this.group = event.arg(1);
    this.labelId = event.arg(2);
    this.#code = event.code;
    this.#argumentsStart = event.firstArgumentIndex + 3;
    this.#end = event.firstArgumentIndex + event.count;
    this.#isBatch = isBatch(this.op);
    this.numUnmatchedMessages = this.#isBatch ? (event.count - 3) / 3 : 0;
    this.viewCount = this.#isBatch ? this.numUnmatchedMessages : this.op === "barrier" ? 0 : 2;
  }

  // Of the messages of a batch, by number; and of the views that another collective uses, its output first.

  /** World rank of the other side. */
  peer(i: number): number {
    return this.#code[this.#argumentsStart + 3 * i]!;
  }

  isSend(i: number): boolean {
    return this.#code[this.#argumentsStart + 3 * i + 1] === 1;
  }

  /** −1 if a collective has none. */
  viewId(i: number): number {
    return this.#isBatch ? this.#code[this.#argumentsStart + 3 * i + 2]! : this.#code[this.#argumentsStart + 1 + i]!;
  }

  /** How it lies in its storage. */
  layout(i: number): StridedLayout {
    return this.#tape.views[this.viewId(i)]!.layout;
  }

  storageId(i: number): number {
    return this.#tape.storageIdByView[this.viewId(i)]!;
  }

  /** The first element of its storage that it uses, and the one after the last. */
  low(i: number): number {
    return this.layout(i).low;
  }

  high(i: number): number {
    return this.layout(i).high;
  }

  /** Elements. */
  size(i: number): number {
    return this.layout(i).size;
  }

  dtype(i: number): DType {
    return this.#tape.views[this.viewId(i)]!.dtype;
  }

  isWrite(i: number): boolean {
    return this.#isBatch ? !this.isSend(i) : i === 0;
  }

  /** It has its turn: what it sends is what memory holds now. No message is cut out of it until it is placed. */
  captureSentContents(memory: { content(view: number): Content }): void {
    this.#contents = new Array<Content | undefined>(this.viewCount);
    this.#receiveOffsets = new Array<number>(this.viewCount);
    for (let i = 0; i < this.viewCount; i++) if (this.isSend(i)) this.#contents[i] = memory.content(this.viewId(i));
  }

  /** What a send was cut out of, or what is to be cut out for a receive: the elements from `sourceStart(i)` on. */
  source(i: number): Content {
    return this.#contents[i]!;
  }

  sourceStart(i: number): number {
    return this.#receiveOffsets[i]!;
  }

  /** What a send carries, counted from its first element. */
  sentMessage(i: number): Content {
    return this.source(i).range(this.low(i), this.high(i));
  }

  /** A receive meets its send: its message begins at an element of what that is cut out of. */
  setSource(i: number, source: Content, low: number): void {
    this.#contents[i] = source;
    this.#receiveOffsets[i] = low;
  }

  /** What has arrived is placed, and what it was cut out of may be released. */
  release(): void {
    this.#contents = [];
    this.#receiveOffsets = [];
  }

  // Of collectives other than batches of messages; see `ops`.

  /** Number of the call in its group: the same on all ranks. */
  get call(): number {
    return this.#code[this.#argumentsStart]!;
  }

  get outputView(): number {
    return this.#code[this.#argumentsStart + 1]!;
  }

  get inputView(): number {
    return this.#code[this.#argumentsStart + 2]!;
  }

  /** Of reductions: the operation. */
  get root(): number {
    return this.#code[this.#argumentsStart + 3]!;
  }

  /** Elements sent to and received from each rank (allToAll) or held by each. */
  get counts(): Int32Array {
    return this.#code.subarray(this.#argumentsStart + 4, this.#end);
  }
}
