import type { GeneratedToken } from "./generated-text.ts";

/** The tokens of one text, for `for await`. Leaving the loop, or `return()`, cancels the text. */
export class TokenStream implements AsyncIterableIterator<GeneratedToken, void> {
  readonly #onCancel: () => void;
  readonly #tokens: GeneratedToken[] = [];
  #waitingReaders: { resolve(result: IteratorResult<GeneratedToken, void>): void; reject(error: unknown): void }[] = [];
  #endState: { readonly error?: unknown } | undefined;

  /** Called by `BatchScheduler.generate`. */
  constructor(onCancel: () => void) {
    this.#onCancel = onCancel;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<GeneratedToken, void>> {
    const value = this.#tokens.shift();
    if (value !== undefined) return Promise.resolve({ done: false, value });
    if (this.#endState === undefined)
      return new Promise((resolve, reject) => this.#waitingReaders.push({ resolve, reject }));
    const { error } = this.#endState;
    this.#endState = {};
    return error === undefined ? Promise.resolve({ done: true, value: undefined }) : Promise.reject(error);
  }

  return(): Promise<IteratorResult<GeneratedToken, void>> {
    this.#tokens.length = 0;
    if (this.#endState === undefined) this.#onCancel();
    this.finish();
    return Promise.resolve({ done: true, value: undefined });
  }

  /** Adds the next token. */
  push(token: GeneratedToken): void {
    if (this.#endState !== undefined) return;
    const reader = this.#waitingReaders.shift();
    if (reader) reader.resolve({ done: false, value: token });
    else this.#tokens.push(token);
    if (token.finishReason !== null) this.finish();
  }

  /** Ends the stream, with `error` if there is one. */
  finish(error?: unknown): void {
    if (this.#endState !== undefined) return;
    const [firstReader, ...otherReaders] = this.#waitingReaders;
    this.#waitingReaders = [];
    this.#endState = firstReader === undefined && error !== undefined ? { error } : {};
    if (error === undefined) firstReader?.resolve({ done: true, value: undefined });
    else firstReader?.reject(error);
    for (const reader of otherReaders) reader.resolve({ done: true, value: undefined });
  }
}
