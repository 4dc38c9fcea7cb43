import type { Writable } from "node:stream";

/** Maximum number of unread bytes. Beyond it, output to the console is skipped. The log files are complete. */
const MAX_UNREAD_BYTES = 67_108_864;

/** Sets the mode of a pipe or terminal by Node's private handle, if it exists. */
function setBlocking(stream: Writable, blocking: boolean): void {
  const { _handle: handle } = stream as { _handle?: { setBlocking?(blocking: boolean): void } };
  handle?.setBlocking?.(blocking);
}

/**
 * Writes to a stream that may be slow, stopped or closed, without waiting for it.
 *
 * Terminals are written asynchronously, too, unlike Node's default, so that a user who presses Ctrl-S does not stop the
 * ranks. When the reader has closed the stream (`| head`), output ends and the job continues.
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

  /** Resolves when all output has been passed to the system, or the stream has failed. Must be the last call. */
  async flush(): Promise<void> {
    await new Promise<void>((resolve) => {
      if (this.#isClosed) return resolve();
      this.#stream.once("error", () => resolve());
      this.#stream.write("", () => resolve());
    });
    // The terminal's mode may be shared with the shell, which continues after this process.
    setBlocking(this.#stream, true);
  }
}
