import type { StridedLayout, View } from "../symbolic/strided-layout.ts";
import type { InternPool } from "../symbolic/intern-pool.ts";
import type { RankRecord } from "../symbolic/rank-record.ts";
import { writeMessages } from "./arrivals.ts";
import type { PostedBatch } from "./batch.ts";
import { type Content, type ContentEntry, uninitializedContent, Region, type ReadResult } from "./content.ts";
import type { Rows, MemoryValue } from "./values.ts";

/** What the storages of one rank hold while its tape is replayed, and what collectives under way do with them. */
export class RankMemory {
  readonly #interned: InternPool;
  readonly #views: readonly View[];
  readonly #storageOf: readonly number[];
  /** Elements of every storage. */
  readonly #storageSizes: readonly number[];
  readonly #contents: Content[];
  readonly #pendingBatches: PostedBatch[] = [];
  /** Collectives under way that read or write a storage: mostly none, which is quickly seen. */
  readonly #readerCounts: Int32Array;
  readonly #writerCounts: Int32Array;
  /** Batches of messages, in order, that have arrived and are not placed yet: most are when the rank goes on, and looked at right after. */
  #arrivedBatches: PostedBatch[] = [];
  /** By storage: how many messages of these it will hold. */
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

  /** The storage that a view shows part of. */
  storageOf(id: number): number {
    return this.#storageOf[id]!;
  }

  /** What a view shows, if it is one thing. */
  singleRegion(id: number): Region | undefined {
    return this.content(id).singleRegion(this.#views[id]!.layout);
  }

  /** What the storage of a view holds. */
  content(id: number): Content {
    return this.#storageContent(this.#storageOf[id]!);
  }

  read(id: number): ReadResult {
    return this.content(id).read(this.#views[id]!.layout);
  }

  write(id: number, entries: readonly ContentEntry[]): void {
    this.#contents[this.#storageOf[id]!] = this.content(id).write(this.#views[id]!.layout, entries);
  }

  /** As `read`, of the view with its four axes in another order. */
  readPermuted(id: number, order: readonly number[]): ReadResult {
    return this.content(id).read(this.#permuteLayout(id, order));
  }

  /** As `write`, through the view with its four axes in another order. */
  writePermuted(id: number, order: readonly number[], entries: readonly ContentEntry[]): void {
    this.#contents[this.#storageOf[id]!] = this.content(id).write(this.#permuteLayout(id, order), entries);
  }

  /** Writes one thing in the place of all that a view shows. */
  writeSingleRegion(id: number, value: MemoryValue, rows: Rows): void {
    const { layout } = this.#views[id]!;
    if (layout.size === 0) return;
    const storage = this.#storageOf[id]!;
    const contents = this.#storageContent(storage);
    const region = new Region(value, rows, layout.box);
    // Nearly always there is nothing else in the storage.
    const coversAllContents =
      contents instanceof Region ? contents.singleRegion(layout) !== undefined : contents.regions.length === 0;
    this.#contents[storage] = coversAllContents ? region : contents.write(layout, [region]);
  }

  /** Elements of a view. */
  size(id: number): number {
    return this.#views[id]!.layout.size;
  }

  /** Whether a view shows elements that follow one another, in their order. */
  isDense(id: number): boolean {
    return this.#views[id]!.layout.isDense;
  }

  /** What a dense view holds, as a message: counted from its first element. */
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

  /** All messages of a batch have arrived, each paired with what its sender sends. */
  addArrivedBatch(batch: PostedBatch): void {
    this.#arrivedBatches.push(batch);
    for (let i = 0; i < batch.viewCount; i++) if (!batch.isSend(i)) this.#arrivedCounts[batch.storageId(i)]!++;
  }

  /** A collective begins to use views; until `release` compute may not write them, nor read what it writes. */
  acquire(batch: PostedBatch): void {
    this.#pendingBatches.push(batch);
    this.#countUses(batch, 1);
  }

  release(batch: PostedBatch): void {
    const last = this.#pendingBatches.pop()!;
    if (last !== batch) this.#pendingBatches[this.#pendingBatches.indexOf(batch)] = last;
    this.#countUses(batch, -1);
  }

  /** A collective under way by its number. */
  pendingBatch(workId: number): PostedBatch | undefined {
    for (const batch of this.#pendingBatches) if (batch.workId === workId) return batch;
    return undefined;
  }

  /** The collective under way that a use by compute gets in the way of, if any. */
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

  /** Places what has arrived, in order. */
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
