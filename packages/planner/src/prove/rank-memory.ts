import type { StridedLayout, View } from "../symbolic/strided-layout.ts";
import type { InternPool } from "../symbolic/intern-pool.ts";
import type { RankRecord } from "../symbolic/rank-record.ts";
import { writeMessages } from "./arrivals.ts";
import type { PostedBatch } from "./batch.ts";
import { type Content, type ContentEntry, uninitializedContent, Region, type ReadResult } from "./content.ts";
import type { Rows, MemoryValue } from "./values.ts";

/** Contents of the storages of one rank while its tape is replayed, and their use by pending collectives. */
export class RankMemory {
  readonly #interned: InternPool;
  readonly #views: readonly View[];
  readonly #storageOf: readonly number[];
  /** Number of elements of every storage. */
  readonly #storageSizes: readonly number[];
  readonly #contents: Content[];
  readonly #pendingBatches: PostedBatch[] = [];
  /** Number of pending collectives that read or write each storage. It is mostly 0, which is fast to check. */
  readonly #readerCounts: Int32Array;
  readonly #writerCounts: Int32Array;
  /**
   * Batches of messages, in order, that have arrived but are not placed yet. Most are placed when the rank continues,
   * and read at once.
   */
  #arrivedBatches: PostedBatch[] = [];
  /** For each storage, the number of its messages in these batches. */
  readonly #arrivedCounts: Int32Array;

  constructor({ interned, views, storageIdByView, storageSizes }: RankRecord) {
    this.#interned = interned;
    this.#views = views;
    this.#storageOf = storageIdByView;
    this.#storageSizes = storageSizes;
    this.#contents = storageSizes.map(() => uninitializedContent);
    this.#readerCounts = new Int32Array(storageSizes.length);
    this.#writerCounts = new Int32Array(storageSizes.length);
    this.#arrivedCounts = new Int32Array(storageSizes.length);
  }

  view(id: number): View {
    return this.#views[id]!;
  }

  /** Returns the storage of a view. */
  storageOf(id: number): number {
    return this.#storageOf[id]!;
  }

  /** Returns the contents of a view if they are a single region. */
  singleRegion(id: number): Region | undefined {
    return this.content(id).singleRegion(this.#views[id]!.layout);
  }

  /** Returns the contents of the storage of a view. */
  content(id: number): Content {
    return this.#storageContent(this.#storageOf[id]!);
  }

  read(id: number): ReadResult {
    return this.content(id).read(this.#views[id]!.layout);
  }

  write(id: number, entries: readonly ContentEntry[]): void {
    this.#contents[this.#storageOf[id]!] = this.content(id).write(this.#views[id]!.layout, entries);
  }

  /** Reads the view with its four axes in another order. */
  readPermuted(id: number, order: readonly number[]): ReadResult {
    return this.content(id).read(this.#permuteLayout(id, order));
  }

  /** Writes through the view with its four axes in another order. */
  writePermuted(id: number, order: readonly number[], entries: readonly ContentEntry[]): void {
    this.#contents[this.#storageOf[id]!] = this.content(id).write(this.#permuteLayout(id, order), entries);
  }

  /** Replaces all contents of a view by one region. */
  writeSingleRegion(id: number, value: MemoryValue, rows: Rows): void {
    const { layout } = this.#views[id]!;
    if (layout.size === 0) return;
    const storage = this.#storageOf[id]!;
    const contents = this.#storageContent(storage);
    const region = new Region(value, rows, layout.box);
    // Nearly always the storage holds nothing else.
    const coversAllContents =
      contents instanceof Region ? contents.singleRegion(layout) !== undefined : contents.regions.length === 0;
    this.#contents[storage] = coversAllContents ? region : contents.write(layout, [region]);
  }

  /** Returns the number of elements of a view. */
  size(id: number): number {
    return this.#views[id]!.layout.size;
  }

  /** Whether the elements of a view are contiguous, in order. */
  isDense(id: number): boolean {
    return this.#views[id]!.layout.isDense;
  }

  /** Returns the contents of a dense view as a message, relative to its first element. */
  message(id: number): Content {
    const { low, high } = this.#views[id]!.layout;
    return this.content(id).range(low, high);
  }

  receive(id: number, message: Content): void {
    const storage = this.#storageOf[id]!;
    this.#contents[storage] = this.#storageContent(storage).receive(
      this.#views[id]!.layout,
      message,
      this.#storageSizes[storage]!,
    );
  }

  invalidate(storage: number): void {
    if (this.#arrivedCounts[storage]! > 0) this.#placeArrivedMessages();
    this.#contents[storage] = uninitializedContent;
  }

  /** Adds a batch whose messages have all arrived, each matched with its send. */
  addArrivedBatch(batch: PostedBatch): void {
    this.#arrivedBatches.push(batch);
    for (let i = 0; i < batch.viewCount; i++) if (!batch.isSend(i)) this.#arrivedCounts[batch.storageId(i)]!++;
  }

  /**
   * Begins the use of views by a collective. Until `release`, compute may not write them, nor read those that it
   * writes.
   */
  acquire(batch: PostedBatch): void {
    this.#pendingBatches.push(batch);
    this.#countUses(batch, 1);
  }

  release(batch: PostedBatch): void {
    const last = this.#pendingBatches.pop()!;
    if (last !== batch) this.#pendingBatches[this.#pendingBatches.indexOf(batch)] = last;
    this.#countUses(batch, -1);
  }

  /** Returns a pending collective by its number. */
  findPendingCollective(workId: number): PostedBatch | undefined {
    for (const batch of this.#pendingBatches) if (batch.workId === workId) return batch;
    return undefined;
  }

  /** Returns the number of the pending collective with which a use by compute conflicts, if any. */
  conflictingWork(id: number, isWritten: boolean): number | undefined {
    const storage = this.#storageOf[id]!;
    if (this.#writerCounts[storage] === 0 && !(isWritten && this.#readerCounts[storage]! > 0)) return undefined;
    const { layout } = this.#views[id]!;
    for (const batch of this.#pendingBatches) {
      for (let i = 0; i < batch.viewCount; i++) {
        if (!isWritten && !batch.isWrite(i)) continue;
        const otherView = batch.viewId(i);
        const { low, high } = this.#views[otherView]!.layout;
        if (this.#storageOf[otherView] === storage && low < layout.high && layout.low < high) return batch.workId;
      }
    }
    return undefined;
  }

  #storageContent(storage: number): Content {
    if (this.#arrivedCounts[storage]! > 0) this.#placeArrivedMessages();
    return this.#contents[storage]!;
  }

  /** Places the messages that have arrived, in order. */
  #placeArrivedMessages(): void {
    const batches = this.#arrivedBatches;
    this.#arrivedBatches = [];
    for (const batch of batches) {
      for (let i = 0; i < batch.viewCount; i++) if (!batch.isSend(i)) this.#arrivedCounts[batch.storageId(i)]!--;
      writeMessages(batch, (storage, layout, message) => {
        this.#contents[storage] = this.#contents[storage]!.receive(layout, message, this.#storageSizes[storage]!);
      });
      batch.release();
    }
  }

  #permuteLayout(id: number, order: readonly number[]): StridedLayout {
    const { layout } = this.#views[id]!;
    const { offset, sizes, strides } = layout.box;
    if (order.every((axis, i) => axis === i)) return layout;
    const permute = (list: readonly number[]): number[] => order.map((axis) => list[axis]!);
    return this.#interned.layouts.layout(permute(sizes), permute(strides), offset);
  }

  #countUses(batch: PostedBatch, delta: number): void {
    for (let i = 0; i < batch.viewCount; i++) {
      const counts = batch.isWrite(i) ? this.#writerCounts : this.#readerCounts;
      counts[this.#storageOf[batch.viewId(i)]!]! += delta;
    }
  }
}
