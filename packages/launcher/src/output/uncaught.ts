/**
 * What a Node rank writes to its stderr right before Node prints an uncaught error, so that the launcher can separate this
 * print from the rank's own output: the report has the same error. A terminal ignores the sequence; it names the run, so that an
 * outer launcher passes it on.
 */
export const uncaughtMark = (runId: string): string => `\u001b]mosaic-uncaught;${runId}\u0007`;

/** Takes the mark out of a stream of bytes, wherever chunks end. */
export class UncaughtFilter {
  readonly #mark: Buffer;
  /** The end of the last chunk, where it may be the beginning of the mark. */
  #held: Buffer = Buffer.alloc(0);
  #isFound = false;

  constructor(runId: string) {
    this.#mark = Buffer.from(uncaughtMark(runId));
  }

  /** The bytes before the mark, and those behind it; `uncaught` is undefined as long as there was none. */
  push(chunk: Buffer): { readonly before: Buffer; readonly uncaught: Buffer | undefined } {
    const none = Buffer.alloc(0);
    if (this.#isFound) return { before: none, uncaught: chunk };
    const data = this.#held.length === 0 ? chunk : Buffer.concat([this.#held, chunk]);
    this.#held = none;
    const at = data.indexOf(this.#mark);
    this.#isFound = at >= 0;
    if (this.#isFound) return { before: data.subarray(0, at), uncaught: data.subarray(at + this.#mark.length) };
    const held = this.#beginsAt(data);
    this.#held = data.subarray(held);
    return { before: data.subarray(0, held), uncaught: undefined };
  }

  /** What is held back when the stream has ended. */
  end(): Buffer {
    const held = this.#held;
    this.#held = Buffer.alloc(0);
    return held;
  }

  /** Where a mark begins that the next chunk may complete; the length of `data` if there is none. */
  #beginsAt(data: Buffer): number {
    const first = this.#mark[0] as number;
    let at = data.indexOf(first, Math.max(0, data.length - this.#mark.length + 1));
    while (at >= 0 && !data.subarray(at).equals(this.#mark.subarray(0, data.length - at)))
      at = data.indexOf(first, at + 1);
    return at < 0 ? data.length : at;
  }
}
