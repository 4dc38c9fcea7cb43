import { errorFromFailure } from "@mosaic/core";

interface Pending {
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
  /** What native code writes to until the completion arrives. */
  readonly held: unknown;
}

/** Promises for work that native code completes later, by number: the JavaScript side of completion_queue.h. */
export class Completions {
  readonly #pending = new Map<number, Pending>();
  #last = 0;

  /** A promise, settled by the completion whose number `submit` is given; `held` stays alive until then. */
  expect(held: unknown, submit: (completion: number) => void): Promise<void> {
    return new Promise((resolve, reject) => {
      const completion = ++this.#last;
      submit(completion);
      this.#pending.set(completion, { resolve, reject, held });
    });
  }

  /** Called by the native completion queue. */
  readonly complete = (completion: number, code: number, message: string): void => {
    const pending = this.#pending.get(completion);
    this.#pending.delete(completion);
    if (code === 0) pending?.resolve();
    else pending?.reject(errorFromFailure(code, message));
  };
}
