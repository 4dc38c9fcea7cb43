import { constants } from "node:os";
import type { Duplex } from "node:stream";
import { Channel } from "../agent/channel.ts";
import { decode, type Frame } from "../agent/frames.ts";
import { ProtocolError } from "../agent/wire.ts";

const CLOCK_INTERVAL_MS = 500;
/** A peer that is silent for this long is lost. With CHECK_MS, both ends of a cut connection find it within 3 s. */
const LOSS_TIMEOUT_MS = 2500;
const CHECK_INTERVAL_MS = 100;

export interface PeerEvents {
  onFrame(frame: Frame): void;
  /** The connection has ended, or nothing has arrived for too long; called once. */
  onLost(reason: string): void;
}

/** A connection between the launchers of two nodes: frames, and a clock frame every 0.5 s in both directions. */
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

  /** Longer frames are accepted from now on. */
  markAuthenticated(): void {
    this.#channel.markAuthenticated();
  }

  send(frame: Frame): void {
    this.#channel.send(frame);
  }

  /** Sends what is queued, then ends. */
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
    // After a pause of this process itself, what the peer sent meanwhile has not been read yet.
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

/** What a `stop` frame makes of the job. */
export const OUTCOMES = { failed: 0, cancelled: 1, "timed-out": 2 } as const;

/** The name of a signal that came as a number. Throws ProtocolError. */
export function signalName(number: number): NodeJS.Signals {
  const signalEntry = Object.entries(constants.signals).find(([, value]) => value === number);
  if (signalEntry === undefined) throw new ProtocolError(`expected a signal number, received ${number}`);
  return signalEntry[0] as NodeJS.Signals;
}
