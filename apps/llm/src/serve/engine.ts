import { ApiError, queueFullError, unavailableError } from "./api-error.ts";
import type { Channel, RankMessage, RankStats, ServerMessage, TextOptions, TextPiece } from "./messages.ts";

/** Receiver of a text. No call follows an error or a piece with a finish reason. */
export interface TextListener {
  onPiece(piece: TextPiece): void;
  onError(error: ApiError): void;
}

interface SubmittedRequest {
  readonly options: TextOptions;
  readonly listener: TextListener;
}

type RankChannel = Channel<ServerMessage, RankMessage>;

const SHUTDOWN_REASON = "the server is shutting down";

/** Time after which rank 0 is considered unresponsive. */
const DEFAULT_STATS_TIMEOUT_MS = 5000;

/**
 * Queue of waiting texts, and the texts that the ranks generate. It runs in the process of the server, so that waiting
 * texts outlive the ranks. If the ranks are lost, running texts fail with 503, and waiting texts are sent to the ranks
 * that are started next.
 */
export class Engine {
  readonly #maxRunningRequests: number;
  readonly #maxWaitingRequests: number;
  readonly #statsTimeoutMs: number;
  #channel: RankChannel | undefined;
  #waitingRequests = new Map<number, SubmittedRequest>();
  readonly #runningRequests = new Map<number, SubmittedRequest>();
  readonly #statsResolvers = new Map<number, (stats: RankStats | null) => void>();
  #nextId = 0;
  #isStopping = false;
  #onDrained: () => void = () => {};

  constructor({
    maxRunning: maxRunningRequests,
    maxWaiting: maxWaitingRequests,
    statsTimeoutMs = DEFAULT_STATS_TIMEOUT_MS,
  }: { readonly maxRunning: number; readonly maxWaiting: number; readonly statsTimeoutMs?: number }) {
    this.#statsTimeoutMs = statsTimeoutMs;
    this.#maxRunningRequests = maxRunningRequests;
    this.#maxWaitingRequests = maxWaitingRequests;
  }

  /** Whether ranks are attached and can generate. */
  get isReady(): boolean {
    return this.#channel !== undefined && !this.#isStopping;
  }

  get numRunning(): number {
    return this.#runningRequests.size;
  }

  get numWaiting(): number {
    return this.#waitingRequests.size;
  }

  /**
   * Submits a text. Returns a function that cancels it.
   *
   * @throws ApiError, 429 for a full queue and 503 without ranks.
   */
  submit(options: TextOptions, listener: TextListener): () => void {
    if (this.#isStopping) throw unavailableError(SHUTDOWN_REASON);
    if (!this.#channel) throw unavailableError("the ranks are starting; try again in a moment");
    if (
      this.#runningRequests.size >= this.#maxRunningRequests &&
      this.#waitingRequests.size >= this.#maxWaitingRequests
    ) {
      throw queueFullError(this.#waitingRequests.size, this.#maxWaitingRequests);
    }
    const id = this.#nextId++;
    this.#waitingRequests.set(id, { options, listener });
    this.#dispatch();
    return () => this.#cancel(id);
  }

  /** Returns the statistics of rank 0, or null without ranks, and if rank 0 does not respond. */
  stats(): Promise<RankStats | null> {
    const channel = this.#channel;
    if (!channel) return Promise.resolve(null);
    const id = this.#nextId++;
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#resolveStats(id, null), this.#statsTimeoutMs);
      this.#statsResolvers.set(id, (stats) => {
        clearTimeout(timer);
        resolve(stats);
      });
      channel.send({ type: "stats", id });
    });
  }

  #resolveStats(id: number, stats: RankStats | null): void {
    this.#statsResolvers.get(id)?.(stats);
    this.#statsResolvers.delete(id);
  }

  /** Attaches ranks that are ready, and sends texts to them. */
  attach(channel: RankChannel): void {
    this.#channel = channel;
    if (this.#isStopping) channel.send({ type: "stop" });
    this.#dispatch();
  }

  /** Processes a message of the ranks. */
  receive(message: RankMessage): void {
    if (message.type === "ready") return;
    if (message.type === "stats") {
      this.#resolveStats(message.id, message.stats);
      return;
    }
    // A message for a cancelled request may have been in flight.
    const request = this.#runningRequests.get(message.id);
    if (!request) return;
    if (message.type === "failed") {
      this.#remove(message.id);
      request.listener.onError(new ApiError(message.isRefused ? 400 : 500, message.message));
      return;
    }
    if (message.finishReason !== null) this.#remove(message.id);
    request.listener.onPiece(message);
  }

  /** Detaches ranks that are lost, or that the server has stopped. Running texts fail with 503. */
  detach(lossReason: string): void {
    const reason = this.#isStopping ? SHUTDOWN_REASON : lossReason;
    this.#channel = undefined;
    for (const resolve of this.#statsResolvers.values()) resolve(null);
    this.#statsResolvers.clear();
    const lostRequests = [...this.#runningRequests.values()];
    this.#runningRequests.clear();
    for (const { listener } of lostRequests) listener.onError(unavailableError(reason));
    this.#onDrained();
  }

  /** Detaches ranks that are not restarted. Waiting texts fail with 503, too. */
  fail(reason: string): void {
    this.detach(reason);
    this.#isStopping = true;
    this.#rejectWaiting(reason);
  }

  /**
   * Rejects new texts, and stops the ranks once the running texts are complete. Resolves to false if the ranks were
   * lost.
   */
  async stop(): Promise<boolean> {
    this.#isStopping = true;
    this.#rejectWaiting(SHUTDOWN_REASON);
    if (this.#runningRequests.size > 0) await new Promise<void>((resolve) => (this.#onDrained = resolve));
    this.#channel?.send({ type: "stop" });
    return this.#channel !== undefined;
  }

  #rejectWaiting(reason: string): void {
    const rejectedRequests = [...this.#waitingRequests.values()];
    this.#waitingRequests.clear();
    for (const { listener } of rejectedRequests) listener.onError(unavailableError(reason));
  }

  #dispatch(): void {
    for (const [id, request] of this.#waitingRequests) {
      if (!this.#channel || this.#runningRequests.size >= this.#maxRunningRequests) return;
      this.#waitingRequests.delete(id);
      this.#runningRequests.set(id, request);
      this.#channel.send({ type: "generate", id, options: request.options });
    }
  }

  #cancel(id: number): void {
    if (this.#waitingRequests.delete(id) || !this.#runningRequests.has(id)) return;
    this.#channel?.send({ type: "cancel", id });
    this.#remove(id);
  }

  #remove(id: number): void {
    this.#runningRequests.delete(id);
    if (this.#runningRequests.size === 0) this.#onDrained();
    this.#dispatch();
  }
}
