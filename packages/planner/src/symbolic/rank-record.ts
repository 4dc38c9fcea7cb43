import { type DType, dtypeBytes, Storage, type Tensor } from "@mosaic/core";
import { type Look, type Names, sameNumbers } from "./names.ts";
import { codeOf, type Reader, Tape } from "./tape.ts";

/** A view that some event used. */
export interface View {
  /** Index of its storage on this rank. */
  readonly storage: number;
  readonly look: Look;
  readonly dtype: DType;
  /** All that it shows. */
  readonly bytes: number;
}

/** Memory that is not there: it has a size and a number. */
export class SymbolicStorage extends Storage {
  readonly id: number;
  /** Nothing is lost with it, and a record must not depend on when garbage is collected. */
  override readonly net = undefined;
  /** Where among its views to look first. */
  next = 0;
  /** Views of it that events used, and their numbers: few, so that a walk finds one sooner than a hash would. */
  readonly views: { readonly view: View; readonly id: number }[] = [];

  constructor(id: number, byteLength: number, free: () => void) {
    // An address as good as any: no two storages share one.
    super((BigInt(id) + 1n) << 44n, byteLength, free);
    this.id = id;
  }
}

/** All that one rank did, and the views and storages that it did it with. */
export class RankRecord {
  readonly rank: number;
  readonly names: Names;
  readonly views: View[] = [];
  /** Bytes of every storage, by number. */
  readonly storages: number[] = [];
  readonly #tape = new Tape();
  #works = 0;

  constructor(rank: number, names: Names) {
    this.rank = rank;
    this.names = names;
  }

  /** As `Tape.push`. */
  push(code: number, args: readonly number[]): void {
    this.#tape.push(code, args);
  }

  /** As `Tape.open`. */
  open(code: number, count: number): number {
    return this.#tape.open(code, count);
  }

  set(at: number, arg: number): void {
    this.#tape.set(at, arg);
  }

  read(): Reader {
    return this.#tape.reader();
  }

  /** A fresh number for a collective. */
  nextWork(): number {
    return this.#works++;
  }

  allocate(bytes: number, freed: () => void): SymbolicStorage {
    const id = this.storages.push(bytes) - 1;
    this.push(codeOf.empty, [id]);
    return new SymbolicStorage(id, bytes, () => {
      this.push(codeOf.free, [id]);
      freed();
    });
  }

  viewOf({ storage, shape, strides, offset, dtype }: Tensor): number {
    const memory = storage as SymbolicStorage;
    const { id, views } = memory;
    const count = views.length;
    // Views are mostly asked for again in the order in which they were first: the next one is looked at first.
    for (let i = 0, at = memory.next; i < count; i++, at++) {
      if (at >= count) at -= count;
      const { look } = views[at]!.view;
      if (look.offset !== offset || !sameNumbers(look.shape, shape) || !sameNumbers(look.strides, strides)) continue;
      memory.next = at + 1;
      return views[at]!.id;
    }
    const look = this.names.look(shape, strides, offset);
    const view = { storage: id, look, dtype, bytes: look.size * dtypeBytes[dtype] };
    const number = this.views.push(view) - 1;
    views.push({ view, id: number });
    return number;
  }
}
