import { ApiError, unavailableError } from "./api-error.ts";
import type { Channel, RankMessage, RankStats, ServerMessage, TextOptions, TextPiece } from "./messages.ts";

/** Who receives a text. Nothing follows an error, or a piece with a finish reason. */
export interface TextListener {
  onPiece(piece: TextPiece): void;
  onError(error: ApiError): void;
}

interface RunningText {
  readonly options: TextOptions;
  readonly listener: TextListener;
}

type RankChannel = Channel<ServerMessage, RankMessage>;

/**
 * Texts that wait, in order, and those that the ranks generate. It lives beside the server, so that what waits outlives the ranks: when they
 * are lost, texts under way end with 503, and the others go to the ranks that are started next.
 */
export class Engine {
  readonly #maxRunningRequests: number;
  readonly #maxWaiting: number;
  #channel: RankChannel | undefined;
  #waitingTexts = new Map<number, RunningText>();
  readonly #runningTexts = new Map<number, RunningText>();
  readonly #stats = new Map<number, (stats: RankStats | null) => void>();
  #nextId = 0;
  #isStopping = false;
  #onDrained: () => void = () => {};

  constructor({ maxRunning, maxWaiting }: { readonly maxRunning: number; readonly maxWaiting: number }) {
    this.#maxRunningRequests = maxRunning;
    this.#maxWaiting = maxWaiting;
  }

  /** Whether ranks are there that generate. */
  get isReady(): boolean {
    return this.#channel !== undefined && !this.#isStopping;
  }

  get running(): number {
    return this.#runningTexts.size;
  }

  get waiting(): number {
    return this.#waitingTexts.size;
  }

  /**
   * A text more; returns what cancels it.
   *
   * @throws ApiError, 429 for a full queue and 503 without ranks.
   */
  submit(options: TextOptions, listener: TextListener): () => void {
    if (this.#isStopping) throw unavailableError("the server is shutting down");
    if (!this.#channel) throw unavailableError("the ranks are starting; try again in a moment");
    if (this.#runningTexts.size >= this.#maxRunningRequests && this.#waitingTexts.size >= this.#maxWaiting) {
      throw new ApiError(429, `${this.#waitingTexts.size} requests are queued already; try again later`, {
        code: "queue_full",
        headers: { "retry-after": "1" },
      });
    }
    const id = this.#nextId++;
    this.#waitingTexts.set(id, { options, listener });
    this.#dispatch();
    return () => this.#cancel(id);
  }

  /** What rank 0 reports of itself; null without ranks. */
  stats(): Promise<RankStats | null> {
    const channel = this.#channel;
    if (!channel) return Promise.resolve(null);
    const id = this.#nextId++;
    return new Promise((resolve) => {
      this.#stats.set(id, resolve);
      channel.send({ type: "stats", id });
    });
  }

  /** Ranks are ready; texts go to them. */
  attach(channel: RankChannel): void {
    this.#channel = channel;
    if (this.#isStopping) channel.send({ type: "stop" });
    this.#dispatch();
  }

  /** A message of the ranks. */
  receive(message: RankMessage): void {
    if (message.type === "ready") return;
    if (message.type === "stats") {
      this.#stats.get(message.id)?.(message.stats);
      this.#stats.delete(message.id);
      return;
    }
    // One that was cancelled may have been under way.
    const text = this.#runningTexts.get(message.id);
    if (!text) return;
    if (message.type === "failed") {
      this.#remove(message.id);
      text.listener.onError(new ApiError(message.isRefused ? 400 : 500, message.message));
      return;
    }
    if (message.finishReason !== null) this.#remove(message.id);
    text.listener.onPiece(message);
  }

  /** The ranks are lost: 503 for the texts under way. */
  detach(reason: string): void {
    this.#channel = undefined;
    for (const resolve of this.#stats.values()) resolve(null);
    this.#stats.clear();
    const lostTexts = [...this.#runningTexts.values()];
    this.#runningTexts.clear();
    for (const { listener } of lostTexts) listener.onError(unavailableError(reason));
    this.#onDrained();
  }

  /** No ranks follow: 503 for those that wait, too. */
  fail(reason: string): void {
    this.#isStopping = true;
    this.detach(reason);
    this.#rejectWaiting(reason);
  }

  /** Takes no texts any more, and ends the ranks when those under way have ended. Resolves to false if the ranks were lost. */
  async stop(): Promise<boolean> {
    this.#isStopping = true;
    this.#rejectWaiting("the server is shutting down");
    if (this.#runningTexts.size > 0) await new Promise<void>((resolve) => (this.#onDrained = resolve));
    this.#channel?.send({ type: "stop" });
    return this.#channel !== undefined;
  }

  #rejectWaiting(reason: string): void {
    const rejectedTexts = [...this.#waitingTexts.values()];
    this.#waitingTexts.clear();
    for (const { listener } of rejectedTexts) listener.onError(unavailableError(reason));
  }

  #dispatch(): void {
    for (const [id, text] of this.#waitingTexts) {
      if (!this.#channel || this.#runningTexts.size >= this.#maxRunningRequests) return;
      this.#waitingTexts.delete(id);
      this.#runningTexts.set(id, text);
      this.#channel.send({ type: "generate", id, options: text.options });
    }
  }

  #cancel(id: number): void {
    if (this.#waitingTexts.delete(id) || !this.#runningTexts.has(id)) return;
    this.#channel?.send({ type: "cancel", id });
    this.#remove(id);
  }

  #remove(id: number): void {
    this.#runningTexts.delete(id);
    if (this.#runningTexts.size === 0) this.#onDrained();
    this.#dispatch();
  }
}
