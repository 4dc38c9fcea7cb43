import { dtypeBytes } from "@mosaic/core";
import type { Look, Names } from "../symbolic/names.ts";
import type { RankRecord, View } from "../symbolic/rank-record.ts";
import type { Batch } from "./batch.ts";
import { type Content, type Entry, nothingHeld, Piece, type Read } from "./content.ts";
import type { Rows, Value } from "./values.ts";

/** What the storages of one rank hold while its tape is replayed, and what collectives under way do with them. */
export class RankMemory {
  readonly #names: Names;
  readonly #views: readonly View[];
  /** Elements of every storage. */
  readonly #sizes: Float64Array;
  readonly #contents: Content[];
  readonly #pending: Batch[] = [];
  /** Collectives under way that read or write a storage: mostly none, which is quickly seen. */
  readonly #readers: Int32Array;
  readonly #writers: Int32Array;

  constructor({ names, views, storages }: RankRecord) {
    this.#names = names;
    this.#views = views;
    this.#sizes = Float64Array.from(storages);
    const bytes = new Int32Array(storages.length).fill(1);
    for (const { storage, dtype } of views) bytes[storage] = dtypeBytes[dtype];
    for (let id = 0; id < storages.length; id++) this.#sizes[id]! /= bytes[id]!;
    this.#contents = storages.map(() => nothingHeld);
    this.#readers = new Int32Array(storages.length);
    this.#writers = new Int32Array(storages.length);
  }

  view(id: number): View {
    return this.#views[id]!;
  }

  /** What a view shows, if it is one thing. */
  only(id: number): Piece | undefined {
    const { storage, look } = this.#views[id]!;
    return this.#contents[storage]!.only(look);
  }

  /** What the storage of a view holds. */
  content(id: number): Content {
    return this.#contents[this.#views[id]!.storage]!;
  }

  read(id: number): Read {
    const { storage, look } = this.#views[id]!;
    return this.#contents[storage]!.read(look);
  }

  write(id: number, entries: readonly Entry[]): void {
    const { storage, look } = this.#views[id]!;
    this.#contents[storage] = this.#contents[storage]!.write(look, entries);
  }

  /** As `read`, of the view with its four axes in another order. */
  readTurned(id: number, order: readonly number[]): Read {
    return this.#contents[this.#views[id]!.storage]!.read(this.#turned(id, order));
  }

  /** As `write`, through the view with its four axes in another order. */
  writeTurned(id: number, order: readonly number[], entries: readonly Entry[]): void {
    const { storage } = this.#views[id]!;
    this.#contents[storage] = this.#contents[storage]!.write(this.#turned(id, order), entries);
  }

  /** Writes one thing in the place of all that a view shows. */
  put(id: number, value: Value, rows: Rows): void {
    const { storage, look } = this.#views[id]!;
    if (look.size === 0) return;
    const before = this.#contents[storage]!;
    const piece = new Piece(value, rows, look.box);
    // Nearly always there is nothing else in the storage.
    const alone = before instanceof Piece ? before.only(look) !== undefined : before.pieces.length === 0;
    this.#contents[storage] = alone ? piece : before.write(look, [piece]);
  }

  /** What a dense view holds, as a message: counted from its first element. */
  message(id: number): Content {
    const { storage, look } = this.#views[id]!;
    return this.#contents[storage]!.range(look.low, look.high);
  }

  receive(id: number, message: Content): void {
    const { storage, look } = this.#views[id]!;
    this.#contents[storage] = this.#contents[storage]!.receive(look, message, this.#sizes[storage]!);
  }

  forget(storage: number): void {
    this.#contents[storage] = nothingHeld;
  }

  /** A collective begins to use views; until `release` compute may not write them, nor read what it writes. */
  hold(batch: Batch): void {
    this.#pending.push(batch);
    this.#count(batch, 1);
  }

  release(batch: Batch): void {
    const last = this.#pending.pop()!;
    if (last !== batch) this.#pending[this.#pending.indexOf(batch)] = last;
    this.#count(batch, -1);
  }

  /** A collective under way by its number. */
  pending(work: number): Batch | undefined {
    for (const batch of this.#pending) if (batch.work === work) return batch;
    return undefined;
  }

  /** The collective under way that a use by compute gets in the way of, if any. */
  rival(id: number, written: boolean): number | undefined {
    const { storage, look } = this.#views[id]!;
    if (this.#writers[storage] === 0 && !(written && this.#readers[storage]! > 0)) return undefined;
    for (const batch of this.#pending) {
      for (let i = 0; i < batch.uses; i++) {
        if (!written && !batch.writes(i)) continue;
        const other = this.view(batch.view(i));
        if (other.storage === storage && other.look.low < look.high && look.low < other.look.high) return batch.work;
      }
    }
    return undefined;
  }

  #turned(id: number, order: readonly number[]): Look {
    const { look } = this.#views[id]!;
    const { offset, sizes, strides } = look.box;
    if (order.every((axis, i) => axis === i)) return look;
    const pick = (list: readonly number[]): number[] => order.map((axis) => list[axis]!);
    return this.#names.look(pick(sizes), pick(strides), offset);
  }

  #count(batch: Batch, by: number): void {
    for (let i = 0; i < batch.uses; i++) {
      const counts = batch.writes(i) ? this.#writers : this.#readers;
      counts[this.#views[batch.view(i)]!.storage]! += by;
    }
  }
}
