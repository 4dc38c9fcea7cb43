import { dtypeBytes } from "@mosaic/core";
import type { RankRecord, View } from "../symbolic/rank-record.ts";
import { Content, type Entry, type Read } from "./content.ts";

/** What the storages of one rank hold while its tape is replayed, and what collectives under way do with them. */
export class RankMemory {
  readonly #views: readonly View[];
  /** Elements of every storage. */
  readonly #sizes: readonly number[];
  readonly #contents: (Content | undefined)[] = [];
  readonly #pending = new Map<number, readonly Use[]>();
  /** Uses under way, by storage: mostly none, which is quickly seen. */
  readonly #busy: Int32Array;

  constructor({ views, storages }: RankRecord) {
    this.#views = views;
    const bytes = new Map(views.map(({ storage, dtype }) => [storage, dtypeBytes[dtype]]));
    this.#sizes = storages.map((size, id) => size / (bytes.get(id) ?? 1));
    this.#busy = new Int32Array(storages.length);
  }

  view(id: number): View {
    return this.#views[id]!;
  }

  read(id: number): Read {
    const { storage, look } = this.view(id);
    return (this.#contents[storage] ?? Content.empty).read(look);
  }

  write(id: number, entries: readonly Entry[]): void {
    const { storage, look } = this.view(id);
    this.#contents[storage] = (this.#contents[storage] ?? Content.empty).write(look, entries);
  }

  /** What a dense view holds, as a message. */
  message(id: number): Content {
    const { storage, look } = this.view(id);
    return (this.#contents[storage] ?? Content.empty).message(look);
  }

  receive(id: number, message: Content): void {
    const { storage, look } = this.view(id);
    const before = this.#contents[storage] ?? Content.empty;
    this.#contents[storage] = before.receive(look, message, this.#sizes[storage]!);
  }

  forget(storage: number): void {
    this.#contents[storage] = undefined;
  }

  /** A collective begins to use views; until `release` compute may not write them, nor read what it writes. */
  hold(work: number, uses: readonly Use[]): void {
    this.#pending.set(work, uses);
    for (const { view } of uses) this.#busy[this.view(view).storage]!++;
  }

  release(work: number): void {
    for (const { view } of this.#pending.get(work) ?? []) this.#busy[this.view(view).storage]!--;
    this.#pending.delete(work);
  }

  /** The collective under way that a use by compute gets in the way of, if any. */
  rival(id: number, written: boolean): number | undefined {
    const { storage, look } = this.view(id);
    if (this.#busy[storage] === 0) return undefined;
    for (const [work, uses] of this.#pending) {
      for (const use of uses) {
        if (!written && !use.written) continue;
        const other = this.view(use.view);
        if (other.storage === storage && other.look.low < look.high && look.low < other.look.high) return work;
      }
    }
    return undefined;
  }
}

/** A view that a collective reads, or writes. */
export interface Use {
  readonly view: number;
  readonly written: boolean;
}
