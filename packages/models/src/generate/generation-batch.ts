import {
  checkArgument,
  checkContext,
  defineOptions,
  DisposedError,
  expectValue,
  formatValue,
  MosaicError,
  option,
  OptionError,
  type OptionsOf,
  OutOfMemoryError,
} from "@mosaic/core";
import { decode, prefill } from "./decode.ts";
import { type Generation, type GenerateOptions, type GenerativeModel, resolveGeneration } from "./generate.ts";
import { GeneratedText, type GeneratedToken } from "./generated-text.ts";
import { GenerationCache, generationCacheOptions, type GenerationSequence } from "./generation-cache.ts";

export const generationBatchOptions = defineOptions("GenerationBatch", generationCacheOptions.fields);
/** Options of `GenerationBatch`. */
export type GenerationBatchOptions = OptionsOf<typeof generationBatchOptions>;

/** Result of a step for one text: its next token, or an error. A `finishReason` or an `error` ends the text. */
export type BatchResult = { readonly id: number } & (
  | { readonly token: GeneratedToken; readonly error?: never }
  | { readonly error: MosaicError; readonly token?: never }
);

/** One text of a batch. */
interface BatchEntry {
  readonly id: number;
  readonly plan: Generation;
  /** Number of blocks of the cache that are reserved for the text. */
  readonly numBlocks: number;
  readonly sequence: GenerationSequence;
  /** Set at the end of the prefill. */
  text?: GeneratedText;
  /** The last token, which is not in the cache yet. */
  lastToken: number;
}

/**
 * Generates several texts together. Each step generates one token of every text, and texts of any length join and leave
 * between steps. This is continuous batching (Orca, Yu et al. 2022), over the ranks that share the model's keys. When a
 * text joins, memory for its prompt and its maximum number of new tokens is reserved in the cache, so that it cannot
 * run out of memory later.
 *
 * Collective: every rank of the backend's axes makes the same calls in the same order, and receives the same tokens.
 * `BatchScheduler` ensures this.
 *
 * @example
 * ```ts
 * import { init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { createModel, GenerationBatch } from "@mosaic/models";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const sizes = { vocab_size: 100, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4 };
 * using model = createModel(ctx, { model_type: "llama", ...sizes });
 * using batch = new GenerationBatch(model, { maxTokens: 1024 });
 * batch.add({ tokens: [1, 2, 3], maxNewTokens: 2, eosTokenIds: [] }); // => 0
 * (await batch.step()).length; // => 1
 * batch.add({ tokens: [4], maxNewTokens: 1, eosTokenIds: [] }); // => 1
 * (await batch.step()).map(({ id, token }) => [id, token?.finishReason]); // => [[0, "length"], [1, "length"]]
 * batch.size; // => 0
 * ```
 * @throws OptionError for invalid options; OutOfMemoryError if the device has too little memory.
 */
export class GenerationBatch implements Disposable {
  /** Maximum number of texts at a time. */
  readonly maxSequences: number;
  readonly #model: GenerativeModel;
  readonly #cache: GenerationCache;
  readonly #entries = new Map<number, BatchEntry>();
  #nextId = 0;
  #freeBlocks: number;
  #isStepping = false;
  #isDisposed = false;

  constructor(model: GenerativeModel, options: GenerationBatchOptions) {
    const isModel = Array.isArray(model?.config?.layers) && typeof model.project === "function";
    expectValue("GenerationBatch: model", isModel, "a CausalLM returned by loadModel", model);
    checkContext("GenerationBatch", model.ctx);
    this.#model = model;
    this.#cache = new GenerationCache(model, generationBatchOptions.parse(options));
    this.maxSequences = this.#cache.maxSequences;
    this.#freeBlocks = this.#cache.maxTokens / this.#cache.blockSize;
  }

  /** Number of texts in the batch. */
  get size(): number {
    return this.#entries.size;
  }

  /** Capacity in tokens. */
  get maxTokens(): number {
    return this.#cache.maxTokens;
  }

  /** Capacity in tokens that holds no keys of a text. Some of it is reserved for texts in the batch. */
  get freeTokens(): number {
    return this.#cache.freeTokens;
  }

  /** Returns whether a text of this number of tokens, its prompt and the maximum of new ones, can join now. */
  hasRoomFor(tokens: number): boolean {
    checkArgument("GenerationBatch.hasRoomFor", tokens, option.integer({ min: 0 }));
    return this.size < this.maxSequences && this.#countBlocks(tokens) <= this.#freeBlocks;
  }

  /**
   * Adds a text, with the options of `CausalLM.generate` except `cache`. Its first token is returned by the step that
   * processes the last of its prompt. Returns its ID, which results contain: 0, 1, 2, …
   *
   * @throws OptionError for invalid options, a text that exceeds the model's length, and during a step;
   * OutOfMemoryError if `hasRoomFor` is false.
   */
  add(options: Omit<GenerateOptions, "cache">): number {
    this.#assertUsable("GenerationBatch.add");
    const plan = resolveBatchedGeneration(this.#model, options);
    const tokens = plan.prompt.length + plan.maxNewTokens;
    if (!this.hasRoomFor(tokens)) {
      throw new OutOfMemoryError({
        where: "GenerationBatch.add",
        expected: `capacity for a sequence of ${tokens} tokens`,
        received: `${this.size} of ${this.maxSequences} sequences in use, ${this.#freeBlocks * this.#cache.blockSize} of ${this.maxTokens} cache tokens free`,
        remedy: "wait until other sequences finish, or create the batch with a larger maxTokens or maxSequences",
      });
    }
    const id = this.#nextId++;
    const numBlocks = this.#countBlocks(tokens);
    this.#freeBlocks -= numBlocks;
    this.#entries.set(id, { id, plan, numBlocks, sequence: this.#cache.createSequence(), lastToken: 0 });
    return id;
  }

  /**
   * Removes a text before its end, and releases its memory at once. Returns whether it was in the batch.
   *
   * @throws OptionError during a step.
   */
  remove(id: number): boolean {
    this.#assertUsable("GenerationBatch.remove");
    checkArgument("GenerationBatch.remove", id, option.integer({ min: 0 }));
    const entry = this.#entries.get(id);
    if (entry) this.#release(entry);
    return entry !== undefined;
  }

  /**
   * Generates one more token of every text that has started, all together. Then processes up to `maxPrefillTokens`
   * tokens of waiting prompts, in order of arrival. A text receives its first token in the step that processes the last
   * token of its prompt. Texts that end leave the batch. Collective.
   *
   * @throws OptionError during another step; the errors of collectives, after which the batch cannot be used.
   */
  async step(): Promise<readonly BatchResult[]> {
    this.#assertUsable("GenerationBatch.step");
    this.#isStepping = true;
    try {
      const entries = [...this.#entries.values()];
      const results = await this.#decode(entries.filter(({ text }) => text !== undefined));
      results.push(...(await this.#prefill(entries.filter(({ text }) => text === undefined))));
      this.#model.ctx.world.markStep();
      return results;
    } finally {
      this.#isStepping = false;
    }
  }

  async #decode(entries: readonly BatchEntry[]): Promise<BatchResult[]> {
    if (entries.length === 0) return [];
    const lastTokens = entries.map((entry) => entry.lastToken);
    const sequences = entries.map(({ sequence }) => sequence);
    const logits = await decode(this.#model, lastTokens, { cache: this.#cache, sequences });
    return entries.map((entry, i) => this.#addToken(entry, logits[i]!));
  }

  /** Processes as many tokens of prompts as a step may, one prompt after another. */
  async #prefill(entries: readonly BatchEntry[]): Promise<BatchResult[]> {
    const results: BatchResult[] = [];
    let remainingTokens = this.#cache.maxPrefillTokens;
    for (const entry of entries) {
      if (remainingTokens === 0) break;
      const { sequence, plan } = entry;
      const count = Math.min(remainingTokens, plan.prompt.length - sequence.length);
      remainingTokens -= count;
      const logits = await prefill(this.#model, plan.prompt, { cache: this.#cache, sequence }, count);
      if (logits === null) continue;
      entry.text = await GeneratedText.create(this.#model, plan);
      results.push(this.#addToken(entry, logits));
    }
    return results;
  }

  #addToken(entry: BatchEntry, logits: Float32Array): BatchResult {
    const { id } = entry;
    try {
      const token = entry.text!.add(logits);
      entry.lastToken = token.token;
      if (token.finishReason !== null) this.#release(entry);
      return { id, token };
    } catch (error) {
      // The logits of one text are NaN, on all ranks alike. The other texts continue.
      if (!(error instanceof MosaicError)) throw error;
      this.#release(entry);
      return { id, error };
    }
  }

  #release({ id, sequence, numBlocks }: BatchEntry): void {
    this.#entries.delete(id);
    this.#freeBlocks += numBlocks;
    sequence.dispose();
  }

  #countBlocks(tokens: number): number {
    return Math.ceil(tokens / this.#cache.blockSize);
  }

  #assertUsable(where: string): void {
    if (this.#isDisposed) {
      throw new DisposedError({
        where,
        expected: "a batch that is not disposed",
        received: "a disposed GenerationBatch",
      });
    }
    if (!this.#isStepping) return;
    throw new OptionError({
      where,
      expected: "a call between steps",
      received: "a call during a step",
      remedy: "await step() first",
    });
  }

  /** Releases the memory in stream order. Idempotent. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    this.#isDisposed = true;
    this.#cache.dispose();
  }
}

/** Calls `resolveGeneration` for a text that uses the memory of a batch. */
export function resolveBatchedGeneration(model: GenerativeModel, options: Omit<GenerateOptions, "cache">): Generation {
  const { cache } = (options as GenerateOptions | undefined) ?? {};
  if (cache === undefined) return resolveGeneration(model, options, model.config.maxBatchLength);
  throw new OptionError({
    where: "GenerationBatch: cache",
    expected: "no cache option, because the batch has its own cache",
    received: cache instanceof GenerationCache ? "a GenerationCache" : formatValue(cache),
    remedy: "leave the option out",
  });
}
