import type { Writable } from "node:stream";

/** What a slow reader may leave unread before the console skips output for it; the log files have everything. */
export const MAX_UNREAD_BYTES = 67_108_864;

/** Node's own handle of a pipe or terminal: private, so looked for and not relied on. */
function setBlocking(stream: Writable, blocking: boolean): void {
  const { _handle: handle } = stream as { _handle?: { setBlocking?(blocking: boolean): void } };
  handle?.setBlocking?.(blocking);
}

/**
 * Writes to a stream that may be slow, stopped or gone, and never waits for it.
 *
 * A terminal is written asynchronously too, which is not Node's way: a user who presses Ctrl-S must not stop the ranks.
 * When the reader is gone (`| head`), output ends and the job goes on.
 */
export class OutputSink {
  readonly #stream: Writable;
  readonly #maxUnreadBytes: number;
  #isClosed = false;
  #droppedLines = 0;

  constructor(stream: Writable, maxUnreadBytes: number = MAX_UNREAD_BYTES) {
    this.#stream = stream;
    this.#maxUnreadBytes = maxUnreadBytes;
    setBlocking(stream, false);
    stream.on("error", () => {
      this.#isClosed = true;
    });
  }

  write(text: string): void {
    if (this.#isClosed) return;
    if (this.#stream.writableLength > this.#maxUnreadBytes) {
      this.#droppedLines++;
      return;
    }
    if (this.#droppedLines > 0) {
      this.#stream.write(
        `mosaic-run: ${this.#droppedLines} lines not shown because the reader was too slow; see the log files\n`,
      );
      this.#droppedLines = 0;
    }
    this.#stream.write(text);
  }

  /** Resolves when everything has been handed to the system, or the reader is gone. The last thing to call. */
  async flush(): Promise<void> {
    await new Promise<void>((resolve) => {
      if (this.#isClosed) return resolve();
      this.#stream.once("error", () => resolve());
      this.#stream.write("", () => resolve());
    });
    // A terminal's mode may be shared with the shell that comes back now.
    setBlocking(this.#stream, true);
  }
}
