import { constants } from "node:os";
import type { Duplex } from "node:stream";
import { Channel } from "../agent/channel.ts";
import { decode, type Frame } from "../agent/frames.ts";
import { ProtocolError } from "../agent/wire.ts";

const CLOCK_MS = 500;
/** A peer that is silent for this long is lost. With CHECK_MS, both ends of a cut connection find it within 3 s. */
const LIMIT_MS = 2500;
const CHECK_MS = 100;

export interface PeerEvents {
  frame(frame: Frame): void;
  /** The connection has ended, or nothing has arrived for too long; called once. */
  onLost(reason: string): void;
}

/** A connection between the launchers of two nodes: frames, and a clock frame every 0.5 s in both directions. */
export class Peer {
  readonly #channel: Channel;
  readonly #events: PeerEvents;
  readonly #timer: NodeJS.Timeout;
  #sentAt = Number.NEGATIVE_INFINITY;
  #tickedAt = performance.now();
  #isLost = false;

  constructor(stream: Duplex, events: PeerEvents) {
    this.#events = events;
    this.#channel = new Channel(stream, {
      content: (content) => events.frame(decode(content)),
      onEnd: (reason) => this.#reportLoss(reason),
    });
    this.#timer = setInterval(() => this.#tick(), CHECK_MS);
  }

  /** Longer frames are accepted from now on. */
  authenticate(): void {
    this.#channel.authenticate();
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
    if (now - this.#tickedAt > CLOCK_MS) this.#channel.receivedAt = now;
    this.#tickedAt = now;
    if (now - this.#sentAt >= CLOCK_MS) {
      this.#sentAt = now;
      this.#channel.send({ kind: "clock", time: BigInt(Date.now()) });
    }
    if (now - this.#channel.receivedAt < LIMIT_MS) return;
    this.#channel.destroy();
    this.#reportLoss(`no heartbeat for ${LIMIT_MS / 1000} s`);
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
  const found = Object.entries(constants.signals).find(([, value]) => value === number);
  if (found === undefined) throw new ProtocolError(`expected a signal number, received ${number}`);
  return found[0] as NodeJS.Signals;
}
