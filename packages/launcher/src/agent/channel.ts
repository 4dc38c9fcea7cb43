import type { Duplex } from "node:stream";
import { encode, type Frame, FrameReader } from "./frames.ts";
import { LIMITS, ProtocolError } from "./wire.ts";

/** Callbacks of a channel's owner. */
export interface ChannelCallbacks {
  /** Called with each complete frame, without its length. May throw ProtocolError, which closes the channel. */
  onContent(content: Buffer): void;
  /** Called once, when the connection has ended. */
  onEnd(reason: string): void;
}

/** A peer with more unread bytes than this limit is disconnected. */
const MAX_UNREAD_BYTES = 64 * 1024 * 1024;

const CONNECTION_END_REASON = "connection closed";

/**
 * Returns the reason of a connection's end. A reset is treated as a close, because the system resets the connection of
 * a peer that exits with unread bytes.
 */
function endReason({ code, message }: NodeJS.ErrnoException): string {
  return code === "ECONNRESET" || code === "EPIPE" ? CONNECTION_END_REASON : message;
}

/** One end of a connection that transfers frames over a byte stream. */
export class Channel {
  /** Time at which data was last received, on the clock of `performance.now()`. */
  lastReceivedAt: number = performance.now();
  readonly #stream: Duplex;
  readonly #events: ChannelCallbacks;
  readonly #reader = new FrameReader();
  #queue: Buffer[] = [];
  #isFlushScheduled = false;
  #isFinished = false;
  #hasEnded = false;

  constructor(stream: Duplex, events: ChannelCallbacks) {
    this.#stream = stream;
    this.#events = events;
    stream.on("data", (chunk: Buffer) => this.#receive(chunk));
    stream.on("error", (error) => this.#end(endReason(error)));
    stream.on("end", () => this.#end(CONNECTION_END_REASON));
    stream.on("close", () => this.#end(CONNECTION_END_REASON));
  }

  /** Whether frames may still be sent. */
  get isOpen(): boolean {
    return !this.#hasEnded && !this.#isFinished;
  }

  /** Accepts longer frames from now on, because the peer has sent a valid hello. */
  markAuthenticated(): void {
    this.#reader.limit = LIMITS.frame;
  }

  send(frame: Frame): void {
    this.write(encode(frame));
  }

  /**
   * Sends an encoded frame together with all others of this turn of the event loop. The delay ensures that received
   * data is read before data is written: a write to a process that has just exited would discard the last data that it
   * sent.
   */
  write(encodedFrame: Buffer): void {
    if (!this.isOpen) return;
    this.#queue.push(encodedFrame);
    if (this.#isFlushScheduled) return;
    this.#isFlushScheduled = true;
    setImmediate(() => {
      this.#isFlushScheduled = false;
      this.#flush();
    });
  }

  /** Sends the queued frames, then closes the connection. Data that still arrives is dropped. */
  finish(): void {
    if (!this.isOpen) return;
    this.#flush();
    this.#isFinished = true;
    this.#stream.end(() => this.#stream.destroy());
  }

  /** Closes the connection at once, without calling `onEnd`. */
  destroy(): void {
    this.#hasEnded = true;
    this.#stream.destroy();
  }

  #flush(): void {
    if (!this.isOpen || this.#queue.length === 0) return;
    const [firstBuffer] = this.#queue;
    this.#stream.write(this.#queue.length === 1 ? firstBuffer : Buffer.concat(this.#queue));
    this.#queue = [];
    if (this.#stream.writableLength > MAX_UNREAD_BYTES)
      this.#end(
        `more than ${MAX_UNREAD_BYTES / 2 ** 20} MiB wait to be sent, because the peer reads too slowly or not at all`,
      );
  }

  #receive(chunk: Buffer): void {
    this.lastReceivedAt = performance.now();
    this.#reader.push(chunk);
    try {
      while (this.isOpen) {
        const content = this.#reader.next();
        if (content === undefined) return;
        this.#events.onContent(content);
      }
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      this.#end(`invalid frame: ${error.message}`);
    }
  }

  #end(reason: string): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#stream.destroy();
    this.#events.onEnd(reason);
  }
}
