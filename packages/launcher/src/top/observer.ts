import { connect } from "node:net";
import { once } from "node:events";
import { Channel } from "../agent/channel.ts";
import { decode, type Frame, MAGIC, PROTOCOL_VERSION, type RankPosition, ROLES } from "../agent/frames.ts";
import { RendezvousError } from "../errors.ts";

/** A world as announced by the agent. */
export interface ObservedWorld {
  /** Number of the world on this connection. */
  readonly number: number;
  readonly name: string;
  readonly attempt: number;
  readonly size: number;
  readonly hosts: readonly string[];
  /** Members by rank. */
  readonly members: readonly { readonly host: number; readonly pid: number }[];
}

interface PendingReply {
  readonly world: number;
  readonly resolve: (positions: readonly RankPosition[]) => void;
}

/** A read-only connection to a control-plane agent; see docs/control-plane.md, "Observers". */
export class Observer implements Disposable {
  /** Resolves when the connection ends. */
  readonly ended: Promise<void>;
  readonly #channel: Channel;
  readonly #worlds = new Map<number, ObservedWorld>();
  readonly #pending = new Map<bigint, PendingReply>();
  #nextRequest = 0n;
  #refusal: string | undefined;

  private constructor(stream: ReturnType<typeof connect>, secret: string) {
    let resolveEnded: () => void = () => {};
    this.ended = new Promise((resolve) => (resolveEnded = resolve));
    this.#channel = new Channel(stream, {
      onContent: (content) => this.#receive(decode(content)),
      onEnd: () => {
        this.#answerPending(() => true);
        resolveEnded();
      },
    });
    this.#channel.markAuthenticated();
    const protocol = { magic: MAGIC, version: PROTOCOL_VERSION, secret, role: ROLES.observer };
    this.#channel.send({ kind: "hello", ...protocol, agent: 0, host: "", address: "" });
  }

  /** Connects to an agent. Throws RendezvousError if no process listens at the socket. */
  static async connect(socket: string, secret: string): Promise<Observer> {
    const stream = connect({ path: socket });
    try {
      await once(stream, "connect");
    } catch (error) {
      throw new RendezvousError(`cannot connect to ${socket}: ${(error as Error).message}; has the job ended?`);
    }
    return new Observer(stream, secret);
  }

  get isConnected(): boolean {
    return this.#channel.isOpen;
  }

  /** Reason why the agent refused the connection; undefined if it did not. */
  get refusal(): string | undefined {
    return this.#refusal;
  }

  /** The worlds that are complete and not over. */
  get worlds(): readonly ObservedWorld[] {
    return [...this.#worlds.values()].filter(({ members }) => members.length > 0);
  }

  /**
   * Returns positions and metrics of the ranks of a world. Ranks that do not reply are missing. Empty once the world is
   * over.
   */
  positions({ number, size }: ObservedWorld): Promise<readonly RankPosition[]> {
    if (!this.#channel.isOpen || !this.#worlds.has(number)) return Promise.resolve([]);
    const request = this.#nextRequest++;
    this.#channel.send({ kind: "positionsRequest", world: number, request, metrics: 1, ranks: [[0, size]] });
    return new Promise((resolve) => this.#pending.set(request, { world: number, resolve }));
  }

  [Symbol.dispose](): void {
    this.#channel.destroy();
  }

  #receive(frame: Frame): void {
    switch (frame.kind) {
      case "world": {
        const { world: number, name, attempt, size } = frame;
        return void this.#worlds.set(number, { number, name, attempt, size, hosts: [], members: [] });
      }
      case "memberTable": {
        const world = this.#worlds.get(frame.world);
        if (world) this.#worlds.set(frame.world, { ...world, hosts: frame.hosts, members: frame.members });
        return;
      }
      case "closed":
        this.#worlds.delete(frame.world);
        return this.#answerPending(({ world }) => world === frame.world);
      case "positions":
        this.#pending.get(frame.request)?.resolve(frame.positions);
        return void this.#pending.delete(frame.request);
      case "refused":
        this.#refusal = frame.message;
    }
    // Other frames that ranks receive about their world are ignored.
  }

  #answerPending(shouldAnswer: (pending: PendingReply) => boolean): void {
    for (const [request, pending] of this.#pending) {
      if (!shouldAnswer(pending)) continue;
      this.#pending.delete(request);
      pending.resolve([]);
    }
  }
}
