import type { ProcessGroup, Transfer, Work } from "@mosaic/core";

/** A batch under way, and what to do with what it brought. */
interface Posted {
  readonly work: Work | undefined;
  readonly arrivals: readonly (() => void)[];
}

/**
 * Batches of messages that are posted one after the other and waited for in the same order, on all ranks: two ranks that
 * exchange several messages must agree on their order, and may not agree on which they need first. Batches run in that
 * order anyway, so nothing waits longer for it.
 */
export class Channel implements Disposable {
  readonly #group: ProcessGroup;
  readonly #label: string;
  readonly #posted: Posted[] = [];
  #waited = 0;

  constructor(group: ProcessGroup, label: string) {
    this.#group = group;
    this.#label = label;
  }

  /** Posts a batch, perhaps an empty one; `arrivals` are called when it is waited for. Returns its number, from 1 on. */
  post(transfers: readonly Transfer[], arrivals: readonly (() => void)[] = []): number {
    const work = transfers.length > 0 ? this.#group.sendRecv(transfers, { label: this.#label }) : undefined;
    return this.#posted.push({ work, arrivals });
  }

  /** What is computed next comes after batch `number` and all before it; by default after all. */
  wait(number: number = this.#posted.length): void {
    while (this.#waited < number) {
      const { work, arrivals } = this.#posted[this.#waited++]!;
      work?.wait();
      for (const arrived of arrivals) arrived();
    }
  }

  /** Leaves nothing under way, whatever happened. */
  [Symbol.dispose](): void {
    while (this.#waited < this.#posted.length) this.#posted[this.#waited++]!.work?.wait();
  }
}
