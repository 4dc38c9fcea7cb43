import { broadcastObject, ClosedError, OptionError, OutOfMemoryError } from "@mosaic/core";
import type { GenerateOptions, GenerativeModel } from "./generate.ts";
import {
  type BatchResult,
  GenerationBatch,
  type GenerationBatchOptions,
  resolveBatchedGeneration,
} from "./generation-batch.ts";
import { TokenStream } from "./token-stream.ts";

/**
 * Without texts, rank 0 sends an empty message at this interval, or at a third of the timeout of collectives if that is
 * shorter, so that the broadcast on which the other ranks wait does not time out.
 */
const MAX_KEEPALIVE_INTERVAL_MS = 10_000;

/** Changes of the batch before a step, the same on all ranks. */
interface BatchChanges {
  /** IDs of the texts that leave. */
  readonly removedIds: readonly number[];
  readonly addedOptions: readonly Omit<GenerateOptions, "cache">[];
  readonly isLast: boolean;
}

interface WaitingRequest {
  readonly options: Omit<GenerateOptions, "cache">;
  /** Number of tokens of the prompt, plus the maximum of new ones. */
  readonly maxTokens: number;
  readonly stream: TokenStream;
}

/**
 * Generates texts that arrive at any time, together on all ranks: a `GenerationBatch` that rank 0 controls. `run` loops
 * on every rank. Before each step, rank 0 broadcasts which texts join and which leave. Texts for which there is no
 * capacity wait, in order.
 *
 * @example
 * ```ts
 * import { init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { BatchScheduler, createModel } from "@mosaic/models";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const sizes = { vocab_size: 100, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4 };
 * using model = createModel(ctx, { model_type: "llama", ...sizes });
 * using scheduler = new BatchScheduler(model, { maxTokens: 1024, maxSequences: 8 });
 * const running = scheduler.run(); // on every rank
 * const answers = [1, 2, 3].map(async (first) => { // on rank 0
 *   const tokens: number[] = [];
 *   for await (const { token } of scheduler.generate({ tokens: [first], maxNewTokens: 5, eosTokenIds: [] })) tokens.push(token);
 *   return tokens.length;
 * });
 * await Promise.all(answers); // => [5, 5, 5]
 * scheduler.stop();
 * await running;
 * ```
 * @throws OptionError for invalid options; OutOfMemoryError if the device has too little memory.
 */
export class BatchScheduler implements Disposable {
  readonly #model: GenerativeModel;
  readonly #batch: GenerationBatch;
  readonly #waitingRequests: WaitingRequest[] = [];
  /** On rank 0, the streams of the texts in the batch, by ID. */
  readonly #streams = new Map<number, TokenStream>();
  readonly #cancelledStreams = new Set<TokenStream>();
  #isStopping = false;
  #state: "new" | "running" | "ended" = "new";
  #wake: () => void = () => {};

  constructor(model: GenerativeModel, options: GenerationBatchOptions) {
    this.#batch = new GenerationBatch(model, options);
    this.#model = model;
  }

  /** Number of texts in the batch. */
  get running(): number {
    return this.#batch.size;
  }

  /** On rank 0, the number of texts that wait for capacity. */
  get waiting(): number {
    return this.#waitingRequests.length;
  }

  /** Capacity in tokens. */
  get maxTokens(): number {
    return this.#batch.maxTokens;
  }

  /** Capacity in tokens that holds no keys of a text. */
  get freeTokens(): number {
    return this.#batch.freeTokens;
  }

  /**
   * Adds a text, on rank 0, with the options of `CausalLM.generate` except `cache`. Options are checked at the call.
   * Leaving the loop over the tokens removes the text from the batch at the next step.
   *
   * @throws OptionError for invalid options, and on other ranks; OutOfMemoryError for a text that exceeds the capacity
   * of the cache; ClosedError after `stop`.
   */
  generate(options: Omit<GenerateOptions, "cache">): TokenStream {
    const where = "BatchScheduler.generate";
    this.#assertRankZero(where);
    if (this.#isStopping || this.#state === "ended") {
      throw new ClosedError({ where, expected: "an open scheduler", received: "a stopped scheduler" });
    }
    const { prompt, maxNewTokens } = resolveBatchedGeneration(this.#model, options);
    const tokens = prompt.length + maxNewTokens;
    if (tokens > this.maxTokens) {
      throw new OutOfMemoryError({
        where,
        expected: `a sequence of at most ${this.maxTokens} tokens, the capacity of the scheduler`,
        received: `a prompt of ${prompt.length} tokens and maxNewTokens of ${maxNewTokens}`,
        remedy: "shorten the prompt, lower maxNewTokens, or create the scheduler with a larger maxTokens",
      });
    }
    const { prompt: _, messages: __, ...requestOptions } = options;
    const stream: TokenStream = new TokenStream(() => this.#cancel(stream));
    this.#waitingRequests.push({ options: { ...requestOptions, tokens: prompt }, maxTokens: tokens, stream });
    this.#wake();
    return stream;
  }

  /**
   * Called on rank 0. No texts can be added afterwards, and `run` resolves on every rank when the existing ones have
   * ended.
   */
  stop(): void {
    this.#assertRankZero("BatchScheduler.stop");
    this.#isStopping = true;
    this.#wake();
  }

  /**
   * Generates until rank 0 calls `stop`. Every rank of the world calls it once.
   *
   * @throws the error of collectives if a rank is lost; unfinished texts end with the same error.
   */
  async run(): Promise<void> {
    if (this.#state !== "new") {
      const received = `a scheduler that is ${this.#state}`;
      throw new OptionError({ where: "BatchScheduler.run", expected: "a scheduler that has not run", received });
    }
    this.#state = "running";
    let failure: unknown;
    try {
      while (await this.#step());
    } catch (error) {
      failure = error;
      throw error;
    } finally {
      this.#end(failure);
    }
  }

  /** Ends all texts, with an error if there is one. */
  #end(error: unknown): void {
    this.#state = "ended";
    for (const stream of [...this.#streams.values(), ...this.#waitingRequests.map((each) => each.stream)]) {
      stream.finish(error);
    }
    this.#streams.clear();
    this.#waitingRequests.length = 0;
  }

  /** Runs one step. Returns whether another one follows. */
  async #step(): Promise<boolean> {
    const { ctx } = this.#model;
    if (ctx.rank === 0) await this.#waitForWork();
    ctx.assertOpen("BatchScheduler.run");
    const ownChanges = ctx.rank === 0 ? this.#collectChanges() : undefined;
    const changes = await broadcastObject(ctx, ownChanges, 0, { label: "BatchScheduler" });
    if (ctx.rank !== 0) {
      for (const id of changes.removedIds) this.#batch.remove(id);
      for (const options of changes.addedOptions) this.#batch.add(options);
    }
    if (changes.isLast) return false;
    for (const result of await this.#batch.step()) this.#deliver(result);
    return true;
  }

  /** Resolves when there is something to compute or to change, or when the keep-alive interval has passed. */
  async #waitForWork(): Promise<void> {
    if (this.#batch.size > 0 || this.#waitingRequests.length > 0 || this.#isStopping) return;
    const intervalMs = Math.min(MAX_KEEPALIVE_INTERVAL_MS, (this.#model.ctx.world.timeout * 1000) / 3);
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, intervalMs);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = () => {};
  }

  /** Applies the changes to the batch of rank 0, and returns them for the other ranks. */
  #collectChanges(): BatchChanges {
    const removedIds = [...this.#streams].filter(([, stream]) => this.#cancelledStreams.has(stream)).map(([id]) => id);
    this.#cancelledStreams.clear();
    for (const id of removedIds) {
      this.#streams.delete(id);
      this.#batch.remove(id);
    }
    const addedOptions: Omit<GenerateOptions, "cache">[] = [];
    for (
      let nextRequest = this.#waitingRequests[0];
      nextRequest && this.#batch.hasRoomFor(nextRequest.maxTokens);
      nextRequest = this.#waitingRequests[0]
    ) {
      this.#waitingRequests.shift();
      this.#streams.set(this.#batch.add(nextRequest.options), nextRequest.stream);
      addedOptions.push(nextRequest.options);
    }
    return {
      removedIds,
      addedOptions,
      isLast: this.#isStopping && this.#batch.size === 0 && this.#waitingRequests.length === 0,
    };
  }

  #deliver({ id, token, error }: BatchResult): void {
    const stream = this.#streams.get(id);
    if (error === undefined) stream?.push(token);
    else stream?.finish(error);
    if (error !== undefined || token.finishReason !== null) this.#streams.delete(id);
  }

  #cancel(stream: TokenStream): void {
    const index = this.#waitingRequests.findIndex((each) => each.stream === stream);
    if (index >= 0) this.#waitingRequests.splice(index, 1);
    else this.#cancelledStreams.add(stream);
  }

  #assertRankZero(where: string): void {
    const { rank } = this.#model.ctx;
    if (rank === 0) return;
    const remedy = "call this method on rank 0 only; on all other ranks, call only run()";
    throw new OptionError({ where, expected: "a call on rank 0", received: `a call on rank ${rank}`, remedy });
  }

  /** Releases the memory in stream order. Texts that have not ended reject with an error. Idempotent. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    this.#batch.dispose();
    // The loop of `run` ends by itself, at its next access to the batch.
    if (this.#state === "running") this.#wake();
    if (this.#state !== "new") return;
    const [expected, received] = ["a call of run()", "a scheduler that was disposed before"];
    this.#end(new ClosedError({ where: "BatchScheduler", expected, received }));
  }
}
