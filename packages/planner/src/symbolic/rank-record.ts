import { type DType, dtypeBytes, Storage, type Tensor } from "@mosaic/core";
import { isLayout, type View } from "./strided-layout.ts";
import type { InternPool } from "./intern-pool.ts";
import { opcodes, type TapeReader, Tape } from "./tape.ts";

/** Memory that is not there: it has a size and a number. */
export class SymbolicStorage extends Storage {
  readonly id: number;
  /** Nothing is lost with it, and a record must not depend on when garbage is collected. */
  override readonly leakRegistry = undefined;
  /** The tensor that an event used last, which the next one mostly uses too, and the number of its view. */
  lastTensor: Tensor | undefined;
  lastView = -1;
  /** Where among its views to look first. */
  nextView = 0;
  /** Numbers of the views of it that events used: few, so that a walk finds one sooner than a hash would. */
  readonly views: number[] = [];

  constructor(id: number, byteLength: number, free: (storage: SymbolicStorage) => void) {
    // An address as good as any: no two storages share one.
    super((BigInt(id) + 1n) << 44n, byteLength, () => free(this));
    this.id = id;
  }
}

/** All that one rank did, and the views and storages that it did it with. */
export class RankRecord {
  readonly rank: number;
  readonly interned: InternPool;
  /** Views that events used, and the storage of each, by number. */
  readonly views: View[] = [];
  readonly storageOf: number[] = [];
  /** Elements of every storage, by number. What is freed is allocated again, as on a device, so that a few numbers do. */
  readonly storages: number[] = [];
  readonly #tape = new Tape();
  /** Storages that were freed, by number and size of elements. */
  readonly #freeLists = new Map<number, SymbolicStorage[]>();
  #works = 0;

  constructor(rank: number, interned: InternPool) {
    this.rank = rank;
    this.interned = interned;
  }

  /** Nothing more will be enqueued: releases what only that would need. */
  close(): void {
    this.#freeLists.clear();
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

  /** How many events the tape has. */
  get events(): number {
    return this.#tape.events;
  }

  read(): TapeReader {
    return this.#tape.reader();
  }

  /** A fresh number for a collective. */
  nextWork(): number {
    return this.#works++;
  }

  /** Memory for so many elements; `onFree` is called, with its bytes, when no tensor uses it any more. */
  allocate(size: number, dtype: DType, onFree: (bytes: number) => void): SymbolicStorage {
    const bytes = dtypeBytes[dtype];
    const kind = 8 * size + bytes;
    let free = this.#freeLists.get(kind);
    if (!free) this.#freeLists.set(kind, (free = []));
    const storage = free.pop() ?? this.#newStorage(size, size * bytes, { free, onFree });
    this.#tape.set(this.#tape.open(opcodes.empty, 1), storage.id);
    return storage;
  }

  #newStorage(size: number, byteLength: number, { free, onFree }: FreeList): SymbolicStorage {
    const id = this.storages.push(size) - 1;
    return new SymbolicStorage(id, byteLength, (storage) => {
      this.#tape.set(this.#tape.open(opcodes.free, 1), id);
      storage.lastTensor = undefined;
      free.push(storage);
      onFree(byteLength);
    });
  }

  /** The number of the view that a tensor is; throws a DisposedError if its memory may have been reused. */
  viewOf(tensor: Tensor): number {
    if (tensor.isDisposed) tensor.assertNotDisposed("symbolic device");
    const storage = tensor.storage as SymbolicStorage;
    if (storage.lastTensor === tensor) return storage.lastView;
    storage.lastTensor = tensor;
    storage.lastView = this.#findView(tensor, storage);
    return storage.lastView;
  }

  #findView({ shape, strides, offset, dtype }: Tensor, storage: SymbolicStorage): number {
    const { id, views, nextView } = storage;
    // Views are mostly used again in the same order: the next one is tried first.
    for (let i = 0, at = nextView; i < views.length; i++, at++) {
      if (at >= views.length) at -= views.length;
      const view = this.views[views[at]!]!;
      if (view.dtype !== dtype || !isLayout(view.layout, shape, strides, offset)) continue;
      storage.nextView = at + 1;
      return views[at]!;
    }
    const { layouts } = this.interned;
    const number = this.views.push(layouts.view(layouts.layout(shape, strides, offset), dtype)) - 1;
    this.storageOf.push(id);
    views.push(number);
    return number;
  }
}

/** Where a storage goes when it is free, and who is notified of it. */
interface FreeList {
  readonly free: SymbolicStorage[];
  readonly onFree: (bytes: number) => void;
}
