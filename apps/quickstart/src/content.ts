/** What rows are, e.g. "K, V", and whose. */
export interface Content {
  readonly what: string;
  /** Ranks, in order. */
  readonly of: readonly number[];
}

/** What was in a piece of memory at some time, and how many rows in all. */
export interface StoredContent extends Content {
  readonly rows: number;
}

interface Timestamped<T> {
  readonly time: number;
  readonly value: T;
}

/** What one rank's memory held when, as far as its events show. Times only grow. */
export class StorageHistory {
  readonly #own: StoredContent;
  readonly #allocations = new Map<number, number[]>();
  readonly #uses = new Map<string, Timestamped<StoredContent>[]>();
  readonly #copies = new Map<string, Timestamped<number>[]>();
  readonly #receipts = new Map<string, Timestamped<undefined>[]>();

  /** `own`: the name of memory that no event names, which can only be the rank's own. */
  constructor(own: StoredContent) {
    this.#own = own;
  }

  /** From now on the number means other memory. Times must not decrease from call to call. */
  allocated(storage: number, time: number): void {
    const times = this.#allocations.get(storage);
    if (times) times.push(time);
    else this.#allocations.set(storage, [time]);
  }

  /** Attention read it, or added to it, as this. */
  used(storage: number, time: number, value: StoredContent): void {
    appendEvent(this.#uses, this.#allocationKey(storage, time), { time, value });
  }

  /** It was copied from another. */
  copied(storage: number, time: number, from: number): void {
    appendEvent(this.#copies, this.#allocationKey(storage, time), { time, value: from });
  }

  /** A message goes there. */
  received(storage: number, time: number): void {
    appendEvent(this.#receipts, this.#allocationKey(storage, time), { time, value: undefined });
  }

  /**
   * What it held at a time. Attention reports what its operands are: so what it was used as last, if nothing has come in
   * since, or else next, before anything comes in; or else what it was copied from.
   */
  contentAt(storage: number, time: number): StoredContent {
    const memory = this.#allocationKey(storage, time);
    const receipts = this.#receipts.get(memory) ?? [];
    const since = receipts.findLast((each) => each.time < time)?.time ?? -1;
    const until = receipts.find((each) => each.time > time)?.time ?? Number.POSITIVE_INFINITY;
    const uses = this.#uses.get(memory) ?? [];
    const use =
      uses.findLast((each) => each.time < time && each.time > since) ??
      uses.find((each) => each.time > time && each.time < until);
    if (use) return use.value;
    const copy = this.#copies.get(memory)?.findLast((each) => each.time < time);
    return copy ? this.contentAt(copy.value, copy.time) : this.#own;
  }

  /** Numbers are used again for other memory: which one it is at a time. */
  #allocationKey(storage: number, time: number): string {
    const before = (this.#allocations.get(storage) ?? []).filter((allocated) => allocated <= time);
    return `${storage}/${before.length}`;
  }
}

function appendEvent<T>(lists: Map<string, Timestamped<T>[]>, memory: string, entry: Timestamped<T>): void {
  const list = lists.get(memory);
  if (list) list.push(entry);
  else lists.set(memory, [entry]);
}
