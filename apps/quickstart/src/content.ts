/** What rows are, e.g. "K, V", and whose. */
export interface Content {
  readonly what: string;
  /** Ranks, in order. */
  readonly of: readonly number[];
}

/** What was in a piece of memory at some time, and how many rows in all. */
export interface Held extends Content {
  readonly rows: number;
}

interface Noted<T> {
  readonly time: number;
  readonly value: T;
}

/** What one rank's memory held when, as far as its events tell. Times only grow. */
export class StorageHistory {
  readonly #own: Held;
  readonly #uses = new Map<number, Noted<Held>[]>();
  readonly #copies = new Map<number, Noted<number>[]>();
  readonly #receipts = new Map<number, Noted<undefined>[]>();

  /** `own`: what to say of memory that nothing tells of, which can only be the rank's own. */
  constructor(own: Held) {
    this.#own = own;
  }

  /** Attention read it, or added to it, as this. */
  used(storage: number, time: number, value: Held): void {
    note(this.#uses, storage, { time, value });
  }

  /** It was copied from another. */
  copied(storage: number, time: number, from: number): void {
    note(this.#copies, storage, { time, value: from });
  }

  /** A message goes there. */
  received(storage: number, time: number): void {
    note(this.#receipts, storage, { time, value: undefined });
  }

  /**
   * What it held at a time. Attention says what its operands are: so what it was used as last, if nothing has come in
   * since, or else next, before anything comes in; or else what it was copied from.
   */
  contentOf(storage: number, time: number): Held {
    const receipts = this.#receipts.get(storage) ?? [];
    const since = receipts.findLast((each) => each.time < time)?.time ?? -1;
    const until = receipts.find((each) => each.time > time)?.time ?? Number.POSITIVE_INFINITY;
    const uses = this.#uses.get(storage) ?? [];
    const use =
      uses.findLast((each) => each.time < time && each.time > since) ??
      uses.find((each) => each.time > time && each.time < until);
    if (use) return use.value;
    const copy = this.#copies.get(storage)?.findLast((each) => each.time < time);
    return copy ? this.contentOf(copy.value, copy.time) : this.#own;
  }
}

function note<T>(lists: Map<number, Noted<T>[]>, storage: number, entry: Noted<T>): void {
  const list = lists.get(storage);
  if (list) list.push(entry);
  else lists.set(storage, [entry]);
}
