import type { LineEvent } from "../job.ts";

/**
 * What a Node rank writes to its stderr right before Node prints an uncaught error, so that the launcher can separate this
 * print from the rank's own output: the report has the same error. A terminal ignores the sequence; it names the run, so that an
 * outer launcher passes it on.
 */
export const uncaughtMarker = (runId: string): string => `\u001b]mosaic-uncaught;${runId}\u0007`;

/** Takes the mark out of a stream of bytes, wherever chunks end. */
export class UncaughtFilter {
  readonly #marker: Buffer;
  /** The end of the last chunk, where it may be the beginning of the mark. */
  #pendingBytes: Buffer = Buffer.alloc(0);
  #isMarkerFound = false;

  constructor(runId: string) {
    this.#marker = Buffer.from(uncaughtMarker(runId));
  }

  /** The bytes before the mark, and those behind it; `uncaught` is undefined as long as there was none. */
  push(chunk: Buffer): { readonly precedingBytes: Buffer; readonly uncaughtBytes: Buffer | undefined } {
    const emptyBuffer = Buffer.alloc(0);
    if (this.#isMarkerFound) return { precedingBytes: emptyBuffer, uncaughtBytes: chunk };
    const data = this.#pendingBytes.length === 0 ? chunk : Buffer.concat([this.#pendingBytes, chunk]);
    this.#pendingBytes = emptyBuffer;
    const markerOffset = data.indexOf(this.#marker);
    this.#isMarkerFound = markerOffset >= 0;
    if (this.#isMarkerFound)
      return {
        precedingBytes: data.subarray(0, markerOffset),
        uncaughtBytes: data.subarray(markerOffset + this.#marker.length),
      };
    const partialOffset = this.#partialMarkerOffset(data);
    this.#pendingBytes = data.subarray(partialOffset);
    return { precedingBytes: data.subarray(0, partialOffset), uncaughtBytes: undefined };
  }

  /** What is held back when the stream has ended. */
  end(): Buffer {
    const pendingBytes = this.#pendingBytes;
    this.#pendingBytes = Buffer.alloc(0);
    return pendingBytes;
  }

  /** Where a mark begins that the next chunk may complete; the length of `data` if there is none. */
  #partialMarkerOffset(data: Buffer): number {
    const firstByte = this.#marker[0] as number;
    let offset = data.indexOf(firstByte, Math.max(0, data.length - this.#marker.length + 1));
    while (offset >= 0 && !data.subarray(offset).equals(this.#marker.subarray(0, data.length - offset)))
      offset = data.indexOf(firstByte, offset + 1);
    return offset < 0 ? data.length : offset;
  }
}

/** A longer line is delivered in pieces, so that one rank without line ends cannot fill the launcher's memory. */
export const MAX_LINE_BYTES = 1_048_576;

const NEWLINE = 10;
const CARRIAGE_RETURN = 13;

/** What a splitter found. */
type LineListener = (kind: LineEvent["kind"], text: string) => void;

/**
 * Cuts a rank's bytes into lines. Works on bytes, so that no character is ever cut in two.
 *
 * `\n` and `\r\n` end a line; a lone `\r` ends a progress message that the next will overwrite.
 */
export class LineSplitter {
  readonly #onLine: LineListener;
  readonly #maxBytes: number;
  /** Without a line end, in the order in which they came: a line of many small chunks is joined once. */
  #incompleteChunks: Buffer[] = [];
  #incompleteBytes = 0;
  /** The text before a `\r` that ended a chunk: should `\n` come next, it was a line after all. */
  #overwrittenLine: string | undefined;

  constructor(onLine: LineListener, maxBytes: number = MAX_LINE_BYTES) {
    this.#onLine = onLine;
    this.#maxBytes = maxBytes;
  }

  push(chunk: Buffer): void {
    let data = chunk;
    if (this.#overwrittenLine !== undefined && data.length > 0) {
      if (data[0] === NEWLINE) {
        this.#onLine("line", this.#overwrittenLine);
        data = data.subarray(1);
      }
      this.#overwrittenLine = undefined;
    }
    const hasLineEnd = data.includes(NEWLINE) || data.includes(CARRIAGE_RETURN);
    if (!hasLineEnd && this.#incompleteBytes + data.length <= this.#maxBytes) return this.#keep(data);
    this.#keep(this.#splitLines(this.#takeIncomplete(data)));
  }

  /** The stream has ended: what is left is a line, and so is a progress message that nothing overwrote. */
  end(): void {
    const incompleteLine = this.#takeIncomplete();
    if (incompleteLine.length > 0) this.#emit("line", incompleteLine);
    else if (this.#overwrittenLine !== undefined) this.#onLine("line", this.#overwrittenLine);
    this.#overwrittenLine = undefined;
  }

  #keep(data: Buffer): void {
    if (data.length === 0) return;
    this.#incompleteChunks.push(data);
    this.#incompleteBytes += data.length;
  }

  /** What was kept, with what follows it. */
  #takeIncomplete(...followingChunks: readonly Buffer[]): Buffer {
    const chunks = [...this.#incompleteChunks, ...followingChunks];
    this.#incompleteChunks = [];
    this.#incompleteBytes = 0;
    return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks);
  }

  #splitLines(data: Buffer): Buffer {
    let start = 0;
    let newlineIndex = data.indexOf(NEWLINE);
    let carriageReturnIndex = data.indexOf(CARRIAGE_RETURN);
    while (newlineIndex >= 0 || carriageReturnIndex >= 0) {
      const endsWithReturn = carriageReturnIndex >= 0 && (newlineIndex < 0 || carriageReturnIndex < newlineIndex);
      const end = endsWithReturn ? carriageReturnIndex : newlineIndex;
      const isCrLf = endsWithReturn && data[carriageReturnIndex + 1] === NEWLINE;
      const segment = data.subarray(start, end);
      if (!endsWithReturn || isCrLf) this.#emit("line", segment);
      else if (segment.length > 0) this.#emit("progress", segment);
      if (endsWithReturn && end === data.length - 1 && segment.length > 0) this.#overwrittenLine = decode(segment);
      start = end + (isCrLf ? 2 : 1);
      if (newlineIndex >= 0 && newlineIndex < start) newlineIndex = data.indexOf(NEWLINE, start);
      if (carriageReturnIndex >= 0 && carriageReturnIndex < start)
        carriageReturnIndex = data.indexOf(CARRIAGE_RETURN, start);
    }
    let remainder = data.subarray(start);
    while (remainder.length > this.#maxBytes) remainder = this.#emitPrefix(remainder);
    return remainder;
  }

  #emit(kind: "line" | "progress", segment: Buffer): void {
    let remainder = segment;
    while (remainder.length > this.#maxBytes) remainder = this.#emitPrefix(remainder);
    this.#onLine(kind, decode(remainder));
  }

  /** Delivers the longest piece that ends between two characters; returns what follows it. */
  #emitPrefix(data: Buffer): Buffer {
    let cutOffset = this.#maxBytes;
    while (cutOffset > this.#maxBytes - 4 && ((data[cutOffset] ?? 0) & 0xc0) === 0x80) cutOffset--;
    this.#onLine("part", decode(data.subarray(0, cutOffset)));
    return data.subarray(cutOffset);
  }
}

const decode = (bytes: Buffer): string => bytes.toString("utf8");
