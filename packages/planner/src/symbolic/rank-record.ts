import { type DType, dtypeBytes, type RowRange, Storage, type Tensor } from "@mosaic/core";
import { matchesLayout, type View } from "./strided-layout.ts";
import type { InternPool } from "./intern-pool.ts";
import { opcodes, type TapeReader, Tape } from "./tape.ts";

/** Memory that is not there: it has a size and a number. */
export class SymbolicStorage extends Storage {
  readonly id: number;
  readonly #onRelease: (storage: SymbolicStorage) => void;
  /** The tensor that an event used last, which the next one mostly uses too, and the number of its view. */
  lastTensor: Tensor | undefined;
  lastViewId = -1;
  /** Where among its views to look first. */
  nextViewIndex = 0;
  /** Numbers of the views of it that events used: mostly few, so that a walk finds one sooner than a map would. */
  readonly views: number[] = [];
  /** Of many views, by offset: the one that was made last. */
  lastViewByOffset: Map<number, number> | undefined;

  constructor(id: number, byteLength: number, onRelease: (storage: SymbolicStorage) => void) {
    super(byteLength);
    this.id = id;
    this.#onRelease = onRelease;
  }

  /** An address as good as any: no two storages share one. */
  get handle(): bigint {
    return (BigInt(this.id) + 1n) << 44n;
  }

  /** Not at the collection of garbage, too: nothing is lost with it, and a record must not depend on when that happens. */
  protected free(): void {
    this.resetReferences();
    this.#onRelease(this);
  }
}

/** All that one rank did, and the views and storages that it did it with. */
export class RankRecord {
  readonly rank: number;
  readonly interned: InternPool;
  /** Views that events used, the storage of each, and its bytes once more: side by side in memory, where views lie far apart. */
  readonly views: View[] = [];
  readonly storageIdByView: number[] = [];
  readonly viewBytes: number[] = [];
  /** Elements of every storage, by number. What is freed is allocated again, as on a device, so that a few numbers do. */
  readonly storageSizes: number[] = [];
  /** Bytes of every storage, by number. */
  readonly storageBytes: number[] = [];
  readonly #tape = new Tape();
  /** Storages that were freed, by number and size of elements. */
  readonly #freeLists = new Map<number, SymbolicStorage[]>();
  /** By view: the one of the same storage and offset that was made before; −1 if none. */
  #previousViewAtOffset: number[] = [];
  #numWorks = 0;

  constructor(rank: number, interned: InternPool) {
    this.rank = rank;
    this.interned = interned;
  }

  /** Nothing more will be enqueued: releases what only that would need. */
  close(): void {
    this.#freeLists.clear();
    this.#previousViewAtOffset = [];
  }

  /** As `Tape.push`. */
  push(code: number, args: readonly number[]): void {
    this.#tape.push(code, args);
  }

  /** As `Tape.open`. */
  open(code: number, count: number): number {
    return this.#tape.open(code, count);
  }

  set(index: number, arg: number): void {
    this.#tape.set(index, arg);
  }

  /** How many events the tape has. */
  get events(): number {
    return this.#tape.events;
  }

  read(): TapeReader {
    return this.#tape.reader();
  }

  /** A fresh number for a collective. */
  nextWorkId(): number {
    return this.#numWorks++;
  }

  /** Memory for so many elements; `onFree` is called, with its bytes, when no tensor uses it any more. */
  allocate(size: number, dtype: DType, onFree: (bytes: number) => void): SymbolicStorage {
    const bytes = dtypeBytes[dtype];
    const freeListKey = 8 * size + bytes;
    let freeList = this.#freeLists.get(freeListKey);
    if (!freeList) this.#freeLists.set(freeListKey, (freeList = []));
    const storage = freeList.pop() ?? this.#newStorage(size, size * bytes, { freeList, onFree });
    this.#tape.set(this.#tape.open(opcodes.empty, 1), storage.id);
    return storage;
  }

  #newStorage(size: number, byteLength: number, { freeList: free, onFree }: FreeOptions): SymbolicStorage {
    const id = this.storageSizes.push(size) - 1;
    this.storageBytes.push(byteLength);
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
    if (storage.lastTensor === tensor) return storage.lastViewId;
    storage.lastTensor = tensor;
    storage.lastViewId = this.#findView(tensor, storage);
    return storage.lastViewId;
  }

  /** The number of the view that some rows of a tensor [..., rows, width] are. */
  viewOfRows({ storage, shape, strides, offset, dtype }: Tensor, { start, length }: RowRange): number {
    const first = offset + start * strides[shape.length - 2]!;
    const view = { shape: shape.with(-2, length), strides, offset: first, dtype };
    return this.#findView(view, storage as SymbolicStorage);
  }

  #findView(view: ViewInit, storage: SymbolicStorage): number {
    const { views, nextViewIndex, lastViewByOffset } = storage;
    if (lastViewByOffset) {
      for (
        let viewId = lastViewByOffset.get(view.offset) ?? -1;
        viewId >= 0;
        viewId = this.#previousViewAtOffset[viewId]!
      )
        if (this.#isView(viewId, view)) return viewId;
      return this.#addView(view, storage);
    }
    // Views are mostly used again in the same order: the next one is tried first.
    for (let i = 0, viewIndex = nextViewIndex; i < views.length; i++, viewIndex++) {
      if (viewIndex >= views.length) viewIndex -= views.length;
      if (!this.#isView(views[viewIndex]!, view)) continue;
      storage.nextViewIndex = viewIndex + 1;
      return views[viewIndex]!;
    }
    return this.#addView(view, storage);
  }

  #isView(viewId: number, { dtype, shape, strides, offset }: ViewInit): boolean {
    const view = this.views[viewId]!;
    return view.dtype === dtype && matchesLayout(view.layout, shape, strides, offset);
  }

  #addView({ dtype, shape, strides, offset }: ViewInit, storage: SymbolicStorage): number {
    const { layouts } = this.interned;
    const view = layouts.view(layouts.layout(shape, strides, offset), dtype);
    const viewId = this.views.push(view) - 1;
    this.storageIdByView.push(storage.id);
    this.viewBytes.push(view.bytes);
    if (!storage.lastViewByOffset) {
      storage.views.push(viewId);
      if (storage.views.length <= MAX_SEARCHED_VIEWS) return viewId;
      storage.lastViewByOffset = new Map<number, number>();
      for (const storedViewId of storage.views) this.#indexView(storage.lastViewByOffset, storedViewId);
    } else this.#indexView(storage.lastViewByOffset, viewId);
    return viewId;
  }

  #indexView(lastViewByOffset: Map<number, number>, viewId: number): void {
    const { offset } = this.views[viewId]!.layout;
    this.#previousViewAtOffset[viewId] = lastViewByOffset.get(offset) ?? -1;
    lastViewByOffset.set(offset, viewId);
  }
}

/** Of more views of a storage one is looked for by its offset. */
const MAX_SEARCHED_VIEWS = 32;

/** What distinguishes a view from others of its storage. */
type ViewInit = Pick<Tensor, "dtype" | "shape" | "strides" | "offset">;

/** Where a storage goes when it is free, and who is notified of it. */
interface FreeOptions {
  readonly freeList: SymbolicStorage[];
  readonly onFree: (bytes: number) => void;
}
