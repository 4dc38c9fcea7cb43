import type { LineEvent } from "../job.ts";
import { truncateUtf8 } from "../utf8.ts";

/**
 * Returns the marker that a Node rank writes to its stderr right before Node prints an uncaught error. The launcher
 * uses it to separate the printed error, which is also in the report, from the rank's own output. Terminals ignore the
 * sequence. It contains the run id, so that an outer launcher forwards it unchanged.
 */
export const uncaughtMarker = (runId: string): string => `\u001b]mosaic-uncaught;${runId}\u0007`;

/** Removes the marker from a byte stream, even if it is split across chunks. */
export class UncaughtFilter {
  readonly #marker: Buffer;
  /** The end of the last chunk, if it may be the beginning of the marker. */
  #pendingBytes: Buffer = Buffer.alloc(0);
  #isMarkerFound = false;

  constructor(runId: string) {
    this.#marker = Buffer.from(uncaughtMarker(runId));
  }

  /** Returns the bytes before and after the marker. `uncaughtBytes` is undefined until the marker was found. */
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

  /** Returns the bytes that are still held back, at the end of the stream. */
  end(): Buffer {
    const pendingBytes = this.#pendingBytes;
    this.#pendingBytes = Buffer.alloc(0);
    return pendingBytes;
  }

  /**
   * Returns the offset of a partial marker at the end of `data`, which the next chunk may complete; `data.length` if
   * there is none.
   */
  #partialMarkerOffset(data: Buffer): number {
    const firstByte = this.#marker[0] as number;
    let offset = data.indexOf(firstByte, Math.max(0, data.length - this.#marker.length + 1));
    while (offset >= 0 && !data.subarray(offset).equals(this.#marker.subarray(0, data.length - offset)))
      offset = data.indexOf(firstByte, offset + 1);
    return offset < 0 ? data.length : offset;
  }
}

/** Longer lines are delivered in pieces, so that output without line ends cannot fill the launcher's memory. */
export const MAX_LINE_BYTES = 1_048_576;

const NEWLINE = 10;
const CARRIAGE_RETURN = 13;

/** Receives the lines of a splitter. */
type LineListener = (kind: LineEvent["kind"], text: string) => void;

/**
 * Splits a rank's output into lines. It works on bytes, so that multi-byte characters are not split.
 *
 * `\n` and `\r\n` end a line. A single `\r` ends a progress message, which the next message overwrites.
 */
export class LineSplitter {
  readonly #onLine: LineListener;
  readonly #maxBytes: number;
  /** Chunks of the incomplete line, in order. They are joined only once, even if there are many. */
  #incompleteChunks: Buffer[] = [];
  #incompleteBytes = 0;
  /** The text before a `\r` at the end of a chunk. If the next byte is `\n`, it was a line. */
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

  /**
   * Handles the end of the stream. Remaining bytes are a line, and so is a progress message that was not overwritten.
   */
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

  /** Removes and returns the kept chunks, joined with the following ones. */
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

  /**
   * Delivers the longest piece of at most `maxBytes` bytes that ends at a character boundary. Returns the remaining
   * bytes.
   */
  #emitPrefix(data: Buffer): Buffer {
    const prefix = truncateUtf8(data, this.#maxBytes);
    this.#onLine("part", decode(prefix));
    return data.subarray(prefix.length);
  }
}

const decode = (bytes: Buffer): string => bytes.toString("utf8");
