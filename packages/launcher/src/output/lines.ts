import type { LineEvent } from "../job.ts";

/** A longer line is delivered in pieces, so that one rank without line ends cannot fill the launcher's memory. */
export const LONGEST_LINE = 65_536;

const NEWLINE = 10;
const RETURN = 13;

/** What a splitter found. */
export type OnLine = (kind: LineEvent["kind"], text: string) => void;

/**
 * Cuts a rank's bytes into lines. Works on bytes, so that no character is ever cut in two.
 *
 * `\n` and `\r\n` end a line; a lone `\r` ends a progress message that the next will overwrite.
 */
export class LineSplitter {
  readonly #onLine: OnLine;
  #rest: Buffer = Buffer.alloc(0);
  /** The text before a `\r` that ended a chunk: should `\n` come next, it was a line after all. */
  #returned: string | undefined;

  constructor(onLine: OnLine) {
    this.#onLine = onLine;
  }

  push(chunk: Buffer): void {
    let data = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk]);
    if (this.#returned !== undefined && data.length > 0) {
      if (data[0] === NEWLINE) {
        this.#onLine("line", this.#returned);
        data = data.subarray(1);
      }
      this.#returned = undefined;
    }
    this.#rest = this.#cut(data);
  }

  /** The stream has ended: what is left is a line, and so is a progress message that nothing overwrote. */
  end(): void {
    if (this.#rest.length > 0) this.#emit("line", this.#rest);
    else if (this.#returned !== undefined) this.#onLine("line", this.#returned);
    this.#rest = Buffer.alloc(0);
    this.#returned = undefined;
  }

  #cut(data: Buffer): Buffer {
    let start = 0;
    let newline = data.indexOf(NEWLINE);
    let back = data.indexOf(RETURN);
    while (newline >= 0 || back >= 0) {
      const isReturn = back >= 0 && (newline < 0 || back < newline);
      const end = isReturn ? back : newline;
      const crlf = isReturn && data[back + 1] === NEWLINE;
      const segment = data.subarray(start, end);
      if (!isReturn || crlf) this.#emit("line", segment);
      else if (segment.length > 0) this.#emit("progress", segment);
      if (isReturn && end === data.length - 1 && segment.length > 0) this.#returned = decode(segment);
      start = end + (crlf ? 2 : 1);
      if (newline >= 0 && newline < start) newline = data.indexOf(NEWLINE, start);
      if (back >= 0 && back < start) back = data.indexOf(RETURN, start);
    }
    let rest = data.subarray(start);
    while (rest.length > LONGEST_LINE) rest = this.#part(rest);
    return rest;
  }

  #emit(kind: "line" | "progress", segment: Buffer): void {
    let rest = segment;
    while (rest.length > LONGEST_LINE) rest = this.#part(rest);
    this.#onLine(kind, decode(rest));
  }

  /** Delivers the longest piece that ends between two characters; returns what follows it. */
  #part(data: Buffer): Buffer {
    let cut = LONGEST_LINE;
    while (cut > LONGEST_LINE - 4 && ((data[cut] ?? 0) & 0xc0) === 0x80) cut--;
    this.#onLine("part", decode(data.subarray(0, cut)));
    return data.subarray(cut);
  }
}

const decode = (bytes: Buffer): string => bytes.toString("utf8");
