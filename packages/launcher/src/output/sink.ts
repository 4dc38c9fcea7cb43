import type { Writable } from "node:stream";

/** Maximum number of unread bytes. Beyond it, output to the console is skipped. The log files are complete. */
const MAX_UNREAD_BYTES = 67_108_864;

/** Sets the mode of a pipe or terminal by Node's private handle, if it exists. */
function setBlocking(stream: Writable, blocking: boolean): void {
  const { _handle: handle } = stream as { _handle?: { setBlocking?(blocking: boolean): void } };
  handle?.setBlocking?.(blocking);
}

/** Options of `OutputSink`. */
export interface SinkOptions {
  readonly maxUnreadBytes?: number;
  /** Called once if the stream cannot be written, as on a full disk. A reader that closes the stream is no error. */
  readonly onError?: (error: Error) => void;
}

/**
 * Writes to a stream that may be slow, stopped or closed, without waiting for it.
 *
 * Terminals are written asynchronously, too, unlike Node's default, so that a user who presses Ctrl-S does not stop the
 * ranks. When the reader has closed the stream (`| head`), or the stream cannot be written, output ends and the job
 * continues.
 */
export class OutputSink {
  readonly #stream: Writable;
  readonly #maxUnreadBytes: number;
  #isClosed = false;
  #error: Error | undefined;
  #droppedLines = 0;

  constructor(stream: Writable, { maxUnreadBytes = MAX_UNREAD_BYTES, onError }: SinkOptions = {}) {
    this.#stream = stream;
    this.#maxUnreadBytes = maxUnreadBytes;
    setBlocking(stream, false);
    stream.on("error", (error: NodeJS.ErrnoException) => {
      const isFirst = !this.#isClosed;
      this.#isClosed = true;
      if (!isFirst || error.code === "EPIPE") return;
      this.#error = error;
      onError?.(error);
    });
  }

  /** The error of the stream; undefined if its reader has closed it. */
  get error(): Error | undefined {
    return this.#error;
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
      // The stream emits its error after it has called back.
      this.#stream.write("", (error) => (error ? setImmediate(resolve) : resolve()));
    });
    // The terminal's mode may be shared with the shell, which continues after this process.
    setBlocking(this.#stream, true);
  }
}
