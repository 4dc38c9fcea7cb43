import { errorFromFailure } from "../errors.ts";

interface Expected {
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
  /** What native code writes to until the letter comes. */
  readonly held: unknown;
}

/** Promises for what streams still have to do, by number. Native code delivers one letter for each. */
export class Letters {
  readonly #expected = new Map<number, Expected>();
  #last = 0;

  /** A promise, settled by the letter whose number `send` is given; `held` stays alive until then. */
  expect(held: unknown, send: (letter: number) => void): Promise<void> {
    return new Promise((resolve, reject) => {
      const letter = ++this.#last;
      send(letter);
      this.#expected.set(letter, { resolve, reject, held });
    });
  }

  /** What the native mailbox calls. */
  readonly deliver = (letter: number, code: number, message: string): void => {
    const expected = this.#expected.get(letter);
    this.#expected.delete(letter);
    if (code === 0) expected?.resolve();
    else expected?.reject(errorFromFailure(code, message));
  };
}
