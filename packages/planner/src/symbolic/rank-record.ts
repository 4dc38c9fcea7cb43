import { type DType, dtypeBytes, type RowRange, Storage, type Tensor } from "@mosaic/core";
import { matchesLayout, type View } from "./strided-layout.ts";
import type { InternPool } from "./intern-pool.ts";
import { opcodes, type TapeReader, Tape } from "./tape.ts";

/** A storage without memory. It has only a size and a number. */
export class SymbolicStorage extends Storage {
  readonly id: number;
  readonly #onRelease: (storage: SymbolicStorage) => void;
  /** The tensor that the last event used, and the number of its view. The next event mostly uses the same tensor. */
  lastTensor: Tensor | undefined;
  lastViewId = -1;
  /** Index in `views` at which the next search begins. */
  nextViewIndex = 0;
  /**
   * Numbers of the views of this storage that events used. There are mostly few, so that a linear search is faster than
   * a map.
   */
  readonly views: number[] = [];
  /** For a storage with many views: the last view that was created at each offset. */
  lastViewByOffset: Map<number, number> | undefined;

  constructor(id: number, byteLength: number, onRelease: (storage: SymbolicStorage) => void) {
    super(byteLength);
    this.id = id;
    this.#onRelease = onRelease;
  }

  /** A made-up address that no other storage has. */
  get handle(): bigint {
    return (BigInt(this.id) + 1n) << 44n;
  }

  /**
   * Runs on release only, not on garbage collection: there is no memory to lose, and a record must not depend on the
   * time of a collection.
   */
  protected free(): void {
    this.resetReferences();
    this.#onRelease(this);
  }
}

/** All operations of one rank, and the views and storages that they used. */
export class RankRecord {
  readonly rank: number;
  readonly interned: InternPool;
  /**
   * Views that events used, then the storage and the bytes of each. The last two repeat fields of objects that are
   * scattered in memory, in arrays that are contiguous.
   */
  readonly views: View[] = [];
  readonly storageIdByView: number[] = [];
  readonly viewBytes: number[] = [];
  /** Elements of every storage, by number. Freed storages are reused, as on a device, so that there are few numbers. */
  readonly storageSizes: number[] = [];
  /** Bytes of every storage, by number. */
  readonly storageBytes: number[] = [];
  readonly #tape = new Tape();
  /** Freed storages, by number of elements and element size. */
  readonly #freeLists = new Map<number, SymbolicStorage[]>();
  /** For each view, the previous view of the same storage and offset; −1 if there is none. */
  #previousViewAtOffset: number[] = [];
  #numWorks = 0;

  constructor(rank: number, interned: InternPool) {
    this.rank = rank;
    this.interned = interned;
  }

  /** Releases what is needed only for recording, because nothing more will be enqueued. */
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

  /** Number of events of the tape. */
  get events(): number {
    return this.#tape.events;
  }

  read(): TapeReader {
    return this.#tape.reader();
  }

  /** Returns a new number for a collective. */
  nextWorkId(): number {
    return this.#numWorks++;
  }

  /** Allocates a storage of `size` elements. `onFree` is called with its bytes when no tensor uses it any more. */
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

  /** Returns the number of a tensor's view. Throws a DisposedError if its memory may have been reused. */
  viewOf(tensor: Tensor): number {
    if (tensor.isDisposed) tensor.assertNotDisposed("symbolic device");
    const storage = tensor.storage as SymbolicStorage;
    if (storage.lastTensor === tensor) return storage.lastViewId;
    storage.lastTensor = tensor;
    storage.lastViewId = this.#findView(tensor, storage);
    return storage.lastViewId;
  }

  /** Returns the number of the view of some rows of a tensor [..., rows, width]. */
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
    // Views are mostly reused in the same order, so the next one is tried first.
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

/** Maximum number of views of a storage that are searched linearly. More views are looked up by offset. */
const MAX_SEARCHED_VIEWS = 32;

/** Properties that distinguish a view from other views of its storage. */
type ViewInit = Pick<Tensor, "dtype" | "shape" | "strides" | "offset">;

/** The list to which a freed storage returns, and the callback on free. */
interface FreeOptions {
  readonly freeList: SymbolicStorage[];
  readonly onFree: (bytes: number) => void;
}
