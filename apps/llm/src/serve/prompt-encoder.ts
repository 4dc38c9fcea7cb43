import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { OptionError } from "@mosaic/attention/core";
import type { Tokenizer } from "@mosaic/models";
import { invalidFieldError, queueFullError } from "./api-error.ts";

/** A text to encode. */
export interface Prompt {
  readonly text: string;
  /** The field of the request that contains the text. */
  readonly field: string;
  /** Whether the tokenizer adds its special tokens. */
  readonly addSpecialTokens: boolean;
}

/** The tokens of a text, why the tokenizer rejects it, or the message of another error. */
export type EncodedPrompt =
  | { readonly tokens: readonly number[] }
  | { readonly rejection: string }
  | { readonly message: string };

/** Encodes a text. The reason of a rejection omits the remedy, because it contains a path of the server. */
export function encodePrompt(tokenizer: Tokenizer, { text, addSpecialTokens }: Prompt): EncodedPrompt {
  try {
    return { tokens: tokenizer.encode(text, { addSpecialTokens }) };
  } catch (error) {
    if (!(error instanceof OptionError)) throw error;
    const { expected, received } = error.details;
    return { rejection: `expected ${expected}, received ${received}; remove it from the text` };
  }
}

/**
 * Returns the tokens of a result.
 *
 * @throws ApiError, 400, if the tokenizer rejects the text; Error for another error.
 */
function getTokens(result: EncodedPrompt, { field }: Prompt): readonly number[] {
  if ("tokens" in result) return result.tokens;
  if ("rejection" in result) throw invalidFieldError(field, `${field}: ${result.rejection}`);
  throw new Error(result.message);
}

/** Data of the worker. */
export interface PromptWorkerData {
  readonly folder: string;
}

/** Longer texts, in UTF-16 code units, are encoded by the worker. This thread encodes this length in about 20 ms. */
const MAX_LOCAL_LENGTH = 4096;

/**
 * The worker is terminated if the client of a longer text disconnects. It encodes shorter ones to their end, because the
 * next worker loads the tokenizer again, which takes a similar time.
 */
const MAX_ABANDONED_LENGTH = 64 * MAX_LOCAL_LENGTH;

/** A prompt that waits for the worker or is being encoded by it. */
interface PendingPrompt {
  readonly prompt: Prompt;
  readonly resolve: (tokens: readonly number[]) => void;
  readonly reject: (error: Error) => void;
}

/** Options of a PromptEncoder. */
export interface PromptEncoderOptions {
  /** The folder of the model, from which the worker loads the tokenizer. */
  readonly folder: string;
  /** The program of the worker. */
  readonly workerEntry: URL;
  /** Maximum number of long prompts that wait while the worker encodes another one. */
  readonly maxWaiting: number;
}

/**
 * Encodes prompts without blocking this thread: short ones at once, long ones one after the other in a worker, which is
 * started for the first long one. The worker does not keep the process alive.
 */
export class PromptEncoder {
  readonly #tokenizer: Tokenizer;
  readonly #options: PromptEncoderOptions;
  #worker: Worker | undefined;
  /** Long prompts that wait for the worker, in the order of their arrival. */
  readonly #waitingPrompts = new Set<PendingPrompt>();
  /** The prompt that the worker encodes. */
  #currentPrompt: PendingPrompt | undefined;
  /** The error of all prompts after `close`. */
  #closeError: Error | undefined;

  constructor(tokenizer: Tokenizer, options: PromptEncoderOptions) {
    this.#tokenizer = tokenizer;
    this.#options = options;
  }

  /**
   * Resolves to the tokens. Rejects with an ApiError 400 if the tokenizer rejects the text, and 429 if too many long
   * prompts are waiting. Rejects when `signal` is aborted, and after `close`. If `signal` is aborted, a waiting prompt is
   * removed from the queue, and the worker stops encoding a very long one.
   */
  async encode(prompt: Prompt, signal: AbortSignal): Promise<readonly number[]> {
    signal.throwIfAborted();
    if (this.#closeError !== undefined) throw this.#closeError;
    if (prompt.text.length <= MAX_LOCAL_LENGTH) return getTokens(encodePrompt(this.#tokenizer, prompt), prompt);
    const { maxWaiting } = this.#options;
    const numWaiting = this.#waitingPrompts.size;
    if (this.#currentPrompt !== undefined && numWaiting >= maxWaiting) throw queueFullError(numWaiting, maxWaiting);
    let onAbort = (): void => {};
    try {
      return await new Promise((resolve, reject) => {
        const pendingPrompt = { prompt, resolve, reject };
        onAbort = () => {
          this.#waitingPrompts.delete(pendingPrompt);
          if (this.#currentPrompt === pendingPrompt && prompt.text.length > MAX_ABANDONED_LENGTH) this.#stopWorker();
          reject(signal.reason as Error);
        };
        signal.addEventListener("abort", onAbort);
        this.#waitingPrompts.add(pendingPrompt);
        if (this.#currentPrompt === undefined) void this.#encodeWaitingPrompts();
      });
    } finally {
      signal.removeEventListener("abort", onAbort);
    }
  }

  /** Rejects with `error` the prompts that wait or are being encoded, and all later ones. Terminates the worker. */
  close(error: Error): void {
    this.#closeError ??= error;
    this.#currentPrompt?.reject(this.#closeError);
    for (const { reject } of this.#waitingPrompts) reject(this.#closeError);
    this.#waitingPrompts.clear();
    this.#stopWorker();
  }

  /** Terminates the worker. The next long prompt starts another one. */
  #stopWorker(): void {
    void this.#worker?.terminate();
    this.#worker = undefined;
  }

  /** Encodes the waiting prompts one after the other, including those that are added meanwhile. */
  async #encodeWaitingPrompts(): Promise<void> {
    for (const pendingPrompt of this.#waitingPrompts) {
      this.#waitingPrompts.delete(pendingPrompt);
      this.#currentPrompt = pendingPrompt;
      await this.#encodeInWorker(pendingPrompt.prompt).then(pendingPrompt.resolve, pendingPrompt.reject);
    }
    this.#currentPrompt = undefined;
  }

  async #encodeInWorker(prompt: Prompt): Promise<readonly number[]> {
    const worker = (this.#worker ??= this.#startWorker());
    const settled = new AbortController();
    const { signal } = settled;
    const exit = once(worker, "exit", { signal }).then(() => {
      throw new Error("the thread that encodes prompts has exited");
    });
    // oxlint-disable-next-line unicorn/require-post-message-target-origin -- of a thread, not of a window
    worker.postMessage(prompt);
    try {
      const [result] = (await Promise.race([once(worker, "message", { signal }), exit])) as [EncodedPrompt];
      return getTokens(result, prompt);
    } finally {
      settled.abort(); // removes the listeners
    }
  }

  #startWorker(): Worker {
    const { folder, workerEntry } = this.#options;
    const worker = new Worker(workerEntry, { workerData: { folder } satisfies PromptWorkerData });
    worker.unref();
    for (const event of ["error", "exit"]) {
      worker.once(event, () => {
        if (this.#worker === worker) this.#worker = undefined;
      });
    }
    return worker;
  }
}
