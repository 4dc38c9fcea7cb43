import { constants } from "node:os";
import type { Duplex } from "node:stream";
import { Channel } from "../agent/channel.ts";
import { decode, type Frame } from "../agent/frames.ts";
import { ProtocolError } from "../agent/wire.ts";

const CLOCK_INTERVAL_MS = 500;
/**
 * Time without data after which a peer is lost. With CHECK_INTERVAL_MS, both ends detect a broken connection within 3
 * s.
 */
const LOSS_TIMEOUT_MS = 2500;
const CHECK_INTERVAL_MS = 100;

export interface PeerEvents {
  onFrame(frame: Frame): void;
  /** Called once, when the connection has ended or no data has arrived within the timeout. */
  onLost(reason: string): void;
}

/**
 * A connection between the launchers of two nodes. It transfers frames, with a clock frame every 0.5 s in both
 * directions.
 */
export class Peer {
  readonly #channel: Channel;
  readonly #events: PeerEvents;
  readonly #timer: NodeJS.Timeout;
  #lastSentAt = Number.NEGATIVE_INFINITY;
  #lastTickAt = performance.now();
  #isLost = false;

  constructor(stream: Duplex, events: PeerEvents) {
    this.#events = events;
    this.#channel = new Channel(stream, {
      onContent: (content) => events.onFrame(decode(content)),
      onEnd: (reason) => this.#reportLoss(reason),
    });
    this.#timer = setInterval(() => this.#tick(), CHECK_INTERVAL_MS);
  }

  /** Accepts longer frames from now on. */
  markAuthenticated(): void {
    this.#channel.markAuthenticated();
  }

  send(frame: Frame): void {
    this.#channel.send(frame);
  }

  /** Sends the queued frames, then closes the connection. */
  finish(): void {
    this.#end();
    this.#channel.finish();
  }

  destroy(): void {
    this.#end();
    this.#channel.destroy();
  }

  #tick(): void {
    const now = performance.now();
    // After a pause of this process, the frames that the peer sent meanwhile have not been read yet.
    if (now - this.#lastTickAt > CLOCK_INTERVAL_MS) this.#channel.lastReceivedAt = now;
    this.#lastTickAt = now;
    if (now - this.#lastSentAt >= CLOCK_INTERVAL_MS) {
      this.#lastSentAt = now;
      this.#channel.send({ kind: "clock", time: BigInt(Date.now()) });
    }
    if (now - this.#channel.lastReceivedAt < LOSS_TIMEOUT_MS) return;
    this.#channel.destroy();
    this.#reportLoss(`no heartbeat for ${LOSS_TIMEOUT_MS / 1000} s`);
  }

  #reportLoss(reason: string): void {
    if (this.#isLost) return;
    this.#end();
    this.#events.onLost(reason);
  }

  #end(): void {
    this.#isLost = true;
    clearInterval(this.#timer);
  }
}

/** Values of `outcome` in a `stop` frame. */
export const OUTCOMES = { failed: 0, cancelled: 1, "timed-out": 2 } as const;

/** Returns the name of a signal number. Throws ProtocolError for an unknown number. */
export function signalName(number: number): NodeJS.Signals {
  const signalEntry = Object.entries(constants.signals).find(([, value]) => value === number);
  if (signalEntry === undefined) throw new ProtocolError(`expected a signal number, received ${number}`);
  return signalEntry[0] as NodeJS.Signals;
}
