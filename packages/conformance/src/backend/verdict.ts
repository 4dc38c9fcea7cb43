import { AssertionError } from "node:assert";

/**
 * Wrong numbers on one rank must not keep it from the trials that follow, for which the other ranks need it. So they are
 * noted and thrown at the end, the first of them and how many there were. Any other error is thrown at once.
 */
export class Verdict {
  readonly #wrong: AssertionError[] = [];
  #trials = 0;

  async hear(trial: () => Promise<void>): Promise<void> {
    this.#trials++;
    try {
      await trial();
    } catch (error) {
      if (!(error instanceof AssertionError)) throw error;
      this.#wrong.push(error);
    }
  }

  give(): void {
    const [first] = this.#wrong;
    if (first === undefined) return;
    first.message += ` (${this.#wrong.length} of ${this.#trials} trials failed)`;
    throw first;
  }
}
