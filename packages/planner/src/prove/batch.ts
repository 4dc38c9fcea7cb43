import type { DType } from "@mosaic/core";
import type { RankRecord } from "../symbolic/rank-record.ts";
import type { StridedLayout } from "../symbolic/strided-layout.ts";
import { isBatch, type TapeOp, type TapeReader } from "../symbolic/tape.ts";
import type { Content } from "./content.ts";

/** A collective that a rank posted. Its arguments stay on the rank's tape. */
export class PostedBatch {
  readonly rank: number;
  /** Index of the rank in the record. */
  readonly index: number;
  readonly op: TapeOp;
  readonly phase: string;
  readonly workId: number;
  readonly group: number;
  /** Number of the label that violations show. */
  readonly labelId: number;
  /**
   * Number of views that it reads and writes: those of a batch's messages, or input and output of another collective.
   */
  readonly viewCount: number;
  /** Number of messages whose other half is still missing, if it is a batch of messages. */
  numUnmatchedMessages: number;
  isDone = false;
  /** For a groupCast or groupReduce: its index among those of its group on this rank, from 1; else 0. */
  groupCollectiveIndex = 0;
  readonly #tape: RankRecord;
  readonly #isBatch: boolean;
  readonly #code: Int32Array;
  /** Index of its first argument after the label. */
  readonly #argumentsStart: number;
  readonly #end: number;
  /**
   * By message: for a send, the contents of its storage when the batch began; for a receive, the contents from which
   * its peer sent.
   */
  #contents: (Content | undefined)[] = [];
  /** By receive: the offset of its message in these contents. */
  #receiveOffsets: number[] = [];

  // oxlint-disable-next-line max-params -- a rank and its event
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

  // The following methods take the index of a message of a batch, or of a view of another collective, whose output is
  // view 0.

  /** World rank of the peer. */
  peer(i: number): number {
    return this.#code[this.#argumentsStart + 3 * i]!;
  }

  isSend(i: number): boolean {
    return this.#code[this.#argumentsStart + 3 * i + 1] === 1;
  }

  /** Number of the view; −1 if a collective has none. */
  viewId(i: number): number {
    return this.#isBatch ? this.#code[this.#argumentsStart + 3 * i + 2]! : this.#code[this.#argumentsStart + 1 + i]!;
  }

  /** Layout of the view in its storage. */
  layout(i: number): StridedLayout {
    return this.#tape.views[this.viewId(i)]!.layout;
  }

  storageId(i: number): number {
    return this.#tape.storageIdByView[this.viewId(i)]!;
  }

  /** First element of the storage that the view uses; `high` is the one after the last. */
  low(i: number): number {
    return this.layout(i).low;
  }

  high(i: number): number {
    return this.layout(i).high;
  }

  /** Number of elements. */
  size(i: number): number {
    return this.layout(i).size;
  }

  dtype(i: number): DType {
    return this.#tape.views[this.viewId(i)]!.dtype;
  }

  isWrite(i: number): boolean {
    return this.#isBatch ? !this.isSend(i) : i === 0;
  }

  /**
   * Captures the contents of memory to send, when the batch begins. Messages are cut out of them only when they are
   * placed.
   */
  captureSentContents(memory: { content(view: number): Content }): void {
    this.#contents = new Array<Content | undefined>(this.viewCount);
    this.#receiveOffsets = new Array<number>(this.viewCount);
    for (let i = 0; i < this.viewCount; i++) if (this.isSend(i)) this.#contents[i] = memory.content(this.viewId(i));
  }

  /** Returns the contents from which a message is cut. A receive's message begins at element `sourceStart(i)`. */
  source(i: number): Content {
    return this.#contents[i]!;
  }

  sourceStart(i: number): number {
    return this.#receiveOffsets[i]!;
  }

  /** Returns the message of a send, relative to its first element. */
  sentMessage(i: number): Content {
    return this.source(i).range(this.low(i), this.high(i));
  }

  /** Matches a receive with its send. The message begins at element `low` of the contents. */
  setSource(i: number, source: Content, low: number): void {
    this.#contents[i] = source;
    this.#receiveOffsets[i] = low;
  }

  /** Releases the contents after the messages have been placed. */
  release(): void {
    this.#contents = [];
    this.#receiveOffsets = [];
  }

  // For collectives other than batches of messages; see `tapeOps`.

  /** Index of the call in its group, equal on all ranks. */
  get call(): number {
    return this.#code[this.#argumentsStart]!;
  }

  get outputView(): number {
    return this.#code[this.#argumentsStart + 1]!;
  }

  get inputView(): number {
    return this.#code[this.#argumentsStart + 2]!;
  }

  /** Root; for reductions, the index of the operation in `reduceOps`. */
  get root(): number {
    return this.#code[this.#argumentsStart + 3]!;
  }

  /** Elements sent to and received from each rank (allToAll) or held by each. */
  get counts(): Int32Array {
    return this.#code.subarray(this.#argumentsStart + 4, this.#end);
  }
}
