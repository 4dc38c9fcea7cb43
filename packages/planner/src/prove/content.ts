import type { Box, StridedLayout } from "../symbolic/strided-layout.ts";
import {
  complement,
  createBox,
  haveDifferentStrides,
  isDense,
  areEqualBoxes,
  origin,
  findOrigin,
  type BoxRange,
  subBox,
  intersect,
  volume,
  clipToRange,
} from "./box.ts";
import { PositionList } from "./positions.ts";
import { isFill, isInputRow, type Rows, type MemoryValue } from "./values.ts";

// Contents of a storage, as strided boxes of elements rather than single elements. A box that is read through other
// strides than it was written through is not found, so that scrambled rows are rejected.

/** Part of a view and its contents; `rows` are those at its own origin. */
export interface ContentEntry {
  readonly value: MemoryValue;
  readonly rows: Rows;
  /** Origin and sizes in the view: batch, head, row, column. */
  readonly origin: readonly number[];
  readonly sizes: readonly number[];
}

/** Contents of a view. */
export interface ReadResult {
  readonly entries: readonly ContentEntry[];
  /** Whether every element of the view is known. */
  readonly isComplete: boolean;
  /** The last check of this read: its arguments and its result. */
  cachedCheck?: { readonly name: string; readonly positions: object; readonly result: unknown } | undefined;
}

/** Contents of a storage. Immutable, so that contents that are sent from rank to rank are analyzed once. */
export interface Content {
  /** Regions that share no element. */
  readonly regions: readonly Region[];
  /** Returns the region that a view covers exactly, if there is one. This is nearly always the case. */
  singleRegion(layout: StridedLayout): Region | undefined;
  read(layout: StridedLayout): ReadResult;
  /** Returns the contents after a view has been overwritten with entries. */
  write(layout: StridedLayout, entries: readonly ContentEntry[]): Content;
  /** Returns the contents of a range of elements, relative to its first, as in a message. */
  range(low: number, high: number): Content;
  /** Returns the regions, moved by `delta` elements. */
  shiftedRegions(delta: number): readonly Region[];
  /** Returns the contents after a message has overwritten a dense view; `size` is that of the storage. */
  receive(layout: StridedLayout, message: Content, size: number): Content;
}

/** Creates contents of these regions. */
export function toContent(regions: readonly Region[]): Content {
  return regions.length === 1 ? regions[0]! : new Regions(regions);
}

/**
 * A box of memory and its contents. Also represents a storage that holds nothing else, and a view that covers exactly
 * this box. Nearly all writes, messages and reads are of this kind, so no further objects are created for them.
 */
export class Region implements ContentEntry, ReadResult, Content {
  readonly value: MemoryValue;
  readonly rows: Rows;
  readonly box: Box;
  cachedCheck: ReadResult["cachedCheck"];

  constructor(value: MemoryValue, rows: Rows, box: Box) {
    this.value = value;
    this.rows = rows;
    this.box = box;
  }

  get origin(): readonly number[] {
    return origin;
  }

  get isComplete(): boolean {
    return true;
  }

  get entries(): readonly ContentEntry[] {
    return [this];
  }

  get regions(): readonly Region[] {
    return [this];
  }

  get sizes(): readonly number[] {
    return this.box.sizes;
  }

  subRegion({ origin: partOrigin, sizes }: BoxRange): Region {
    if (partOrigin === origin && sizes === this.sizes) return this;
    return new Region(this.value, shiftRows(this, partOrigin, sizes), subBox(this.box, partOrigin, sizes));
  }

  /** Returns the region, moved by `delta` elements. */
  shiftedRegion(delta: number): Region {
    const { offset, sizes, strides } = this.box;
    return delta === 0 ? this : new Region(this.value, this.rows, createBox(offset + delta, sizes, strides));
  }

  singleRegion(layout: StridedLayout): Region | undefined {
    return areEqualBoxes(this.box, layout.box) ? this : undefined;
  }

  read(layout: StridedLayout): ReadResult {
    return areEqualBoxes(this.box, layout.box) ? this : readRegions(layout, [this]);
  }

  write(layout: StridedLayout, entries: readonly ContentEntry[]): Content {
    return new Regions([this]).write(layout, entries);
  }

  range(low: number, high: number): Content {
    if (low === 0 && this.box.high <= high) return this;
    return this.rowRange(low, high, 0) ?? new Regions([this]).range(low, high);
  }

  /**
   * Returns a range of elements, moved to begin at `offset`, if it consists of whole rows of the region; else
   * undefined.
   */
  // oxlint-disable-next-line max-params -- a range and its new offset; called for each of millions of messages
  rowRange(low: number, high: number, offset: number): Region | undefined {
    const { box, value, rows } = this;
    const width = rowWidth(box);
    const [first, count] = [(low - box.low) / width, (high - low) / width];
    if (first < 0 || count <= 0 || high > box.high || !Number.isInteger(first) || !Number.isInteger(count))
      return undefined;
    if (box.strides[2] !== width || !isDense(box)) return undefined;
    const [batches, heads, positionCount, columns] = box.sizes as [number, number, number, number];
    const sizes = positionCount === count ? box.sizes : [batches, heads, count, columns];
    const rowsRange =
      positionCount === count || isFill(value) ? rows : { ...rows, positions: rows.positions.subset(first, count) };
    return new Region(value, rowsRange, {
      offset,
      sizes,
      strides: box.strides,
      low: offset,
      high: offset + high - low,
    });
  }

  shiftedRegions(delta: number): readonly Region[] {
    return [this.shiftedRegion(delta)];
  }

  receive(layout: StridedLayout, message: Content, size: number): Content {
    if (layout.offset === 0 && layout.size === size) return message;
    return new Regions([this]).receive(layout, message, size);
  }
}

/** Returns the number of elements of a row, over all sequences, heads and columns. */
export function rowWidth({ sizes }: Box): number {
  return sizes[0]! * sizes[1]! * sizes[3]!;
}

/** Returns the rows of a part of an entry. A fill has no rows, so its placeholder is returned unchanged. */
export function shiftRows(
  { value, rows }: Pick<ContentEntry, "value" | "rows">,
  start: readonly number[],
  sizes: readonly number[],
): Rows {
  if (isFill(value)) return rows;
  const isAtOrigin = start[0] === 0 && start[1] === 0 && start[2] === 0 && start[3] === 0;
  if (isAtOrigin && sizes[2] === rows.positions.length) return rows;
  return {
    batch: rows.batch + start[0]!,
    head: rows.head + start[1]!,
    column: rows.column + start[3]!,
    positions: rows.positions.subset(start[2]!, sizes[2]!),
  };
}

/** Maximum number of regions that are searched linearly. */
const MAX_LINEAR_SEARCH_REGIONS = 8;

function areOrdered(regions: readonly Region[]): boolean {
  for (let i = 1; i < regions.length; i++) if (regions[i]!.box.low < regions[i - 1]!.box.high) return false;
  return true;
}

/** Contents of several regions, or of none. */
class Regions implements Content {
  readonly regions: readonly Region[];
  #cachedIsOrdered: boolean | undefined;
  #lastRead: { readonly layout: StridedLayout; readonly result: ReadResult } | undefined;
  #readCache: Map<StridedLayout, ReadResult> | undefined;

  constructor(regions: readonly Region[]) {
    this.regions = regions;
  }

  singleRegion(layout: StridedLayout): Region | undefined {
    const index = this.#findRegion(layout);
    if (index >= 0) return this.regions[index];
    if (this.regions.length < 2) return undefined;
    const result = this.read(layout);
    return result instanceof Region ? result : undefined;
  }

  read(layout: StridedLayout): ReadResult {
    const index = this.#findRegion(layout);
    if (index >= 0) return this.regions[index]!;
    if (this.#lastRead?.layout === layout) return this.#lastRead.result;
    let result = this.#readCache?.get(layout);
    if (!result) {
      result = readRegions(layout, this.#regionsNear(layout.low, layout.high));
      // Most contents are read through one view only and need no map.
      if (this.#lastRead)
        this.#readCache = (this.#readCache ?? new Map<StridedLayout, ReadResult>()).set(layout, result);
      else this.#lastRead = { layout, result };
    }
    return result;
  }

  write(layout: StridedLayout, entries: readonly ContentEntry[]): Content {
    if (layout.size === 0) return this;
    const writtenRegions = entries.map((entry) => toRegion(layout, entry));
    const index = this.#findRegion(layout);
    if (index < 0) return toContent([...this.#regionsOutside(layout), ...writtenRegions]);
    if (writtenRegions.length === 1) return toContent(this.regions.with(index, writtenRegions[0]!));
    return toContent([...this.regions.slice(0, index), ...this.regions.slice(index + 1), ...writtenRegions]);
  }

  range(low: number, high: number): Content {
    if (low === 0 && this.#endsBy(high)) return this;
    const nearRegions = this.#regionsNear(low, high);
    const rows = nearRegions.length === 1 ? nearRegions[0]!.rowRange(low, high, 0) : undefined;
    if (rows) return rows;
    const clippedRegions: Region[] = [];
    for (const region of nearRegions) {
      if (region.box.low >= high || low >= region.box.high) continue;
      for (const range of clipToRange(region.box, low, high))
        clippedRegions.push(region.subRegion(range).shiftedRegion(-low));
    }
    return toContent(clippedRegions);
  }

  #endsBy(high: number): boolean {
    for (let i = 0; i < this.regions.length; i++) if (this.regions[i]!.box.high > high) return false;
    return true;
  }

  shiftedRegions(delta: number): readonly Region[] {
    return delta === 0 ? this.regions : this.regions.map((region) => region.shiftedRegion(delta));
  }

  receive(layout: StridedLayout, message: Content, size: number): Content {
    if (layout.offset === 0 && layout.size === size) return message;
    const remainingRegions = this.#regionsOutside(layout);
    return remainingRegions.length === 0 && layout.offset === 0
      ? message
      : toContent([...remainingRegions, ...message.shiftedRegions(layout.offset)]);
  }

  /** Returns the index of the region that a view covers exactly; −1 if it covers part of one, or several. */
  #findRegion({ box }: StridedLayout): number {
    const isOrdered = this.#isOrdered();
    const first = isOrdered ? this.#firstEndingAfter(box.low) : 0;
    const end = isOrdered ? Math.min(first + 1, this.regions.length) : this.regions.length;
    for (let i = first; i < end; i++) {
      const regionBox = this.regions[i]!.box;
      if (regionBox.offset === box.offset && areEqualBoxes(regionBox, box)) return i;
    }
    return -1;
  }

  /** Returns the regions that may overlap a range, and perhaps others. */
  #regionsNear(low: number, high: number): readonly Region[] {
    if (!this.#isOrdered()) return this.regions;
    const first = this.#firstEndingAfter(low);
    let end = first;
    while (end < this.regions.length && this.regions[end]!.box.low < high) end++;
    return this.regions.slice(first, end);
  }

  /** Returns the index of the first of the ordered regions that ends after an element. */
  #firstEndingAfter(element: number): number {
    let [low, high] = [0, this.regions.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.regions[middle]!.box.high <= element) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Whether there are many regions, in memory order, so that a binary search is faster than a linear one. */
  #isOrdered(): boolean {
    return (this.#cachedIsOrdered ??= this.regions.length > MAX_LINEAR_SEARCH_REGIONS && areOrdered(this.regions));
  }

  #regionsOutside(layout: StridedLayout): readonly Region[] {
    if (!this.#isOrdered()) return this.#subtractLayout(this.regions, layout);
    // Only the regions that the view overlaps are cut.
    const first = this.#firstEndingAfter(layout.low);
    let end = first;
    while (end < this.regions.length && this.regions[end]!.box.low < layout.high) end++;
    if (first === end) return this.regions;
    const remainingRegions = this.#subtractLayout(this.regions.slice(first, end), layout);
    return [...this.regions.slice(0, first), ...remainingRegions, ...this.regions.slice(end)];
  }

  #subtractLayout(regions: readonly Region[], layout: StridedLayout): readonly Region[] {
    const isContiguous = layout.high - layout.low === layout.size;
    const isInsideLayout = ({ box: { low, high } }: Region): boolean => layout.low <= low && high <= layout.high;
    if (isContiguous && regions.every(isInsideLayout)) return noRegions;
    // Messages are mostly written to memory that holds nothing yet.
    if (regions.every(({ box: { low, high } }) => layout.low >= high || low >= layout.high)) return regions;
    const remainingRegions: Region[] = [];
    let numRemainingElements = layout.size;
    for (const region of regions) {
      if (numRemainingElements > 0) numRemainingElements -= addRemainder(remainingRegions, region, layout);
      else remainingRegions.push(region);
    }
    return remainingRegions;
  }
}

const noRegions: readonly Region[] = [];

/** Contents of memory that was never written. */
export const uninitializedContent: Content = new Regions(noRegions);

function toRegion({ box }: StridedLayout, { value, rows, origin, sizes }: ContentEntry): Region {
  return new Region(value, rows, subBox(box, origin, sizes));
}

function readRegions(layout: StridedLayout, regions: readonly Region[]): ReadResult {
  const entries: ContentEntry[] = [];
  let numElements = 0;
  // Regions are disjoint, so once all of the view is known, no other region overlaps it.
  for (let i = 0; i < regions.length && numElements < layout.size; i++) {
    const entry = visibleEntry(layout, regions[i]!);
    if (!entry) continue;
    entries.push(entry);
    numElements += volume(entry.sizes);
  }
  const isComplete = numElements === layout.size;
  const joinedEntries = joinRows(joinColumns(entries, layout.box.sizes[3]!), layout.box.sizes[2]!);
  const [firstEntry] = joinedEntries;
  if (isComplete && joinedEntries.length === 1) return new Region(firstEntry!.value, firstEntry!.rows, layout.box);
  return { entries: joinedEntries, isComplete };
}

/** Joins rows of an input from several ranks into one entry. */
function joinRows(entries: readonly ContentEntry[], count: number): readonly ContentEntry[] {
  const [first] = entries;
  if (!first || entries.length === 1 || !isInputRow(first.value)) return entries;
  const sortedEntries = entries.toSorted((a, b) => a.origin[2]! - b.origin[2]!);
  let nextRow = 0;
  for (const { value, rows, origin: at, sizes } of sortedEntries) {
    const haveSameRows = value === first.value && rows.batch === first.rows.batch && rows.head === first.rows.head;
    const isAtOrigin = at[0] === 0 && at[1] === 0 && at[3] === 0 && rows.column === first.rows.column;
    const haveSameSizes = sizes[0] === first.sizes[0] && sizes[1] === first.sizes[1] && sizes[3] === first.sizes[3];
    if (!haveSameRows || !isAtOrigin || !haveSameSizes || at[2] !== nextRow) return entries;
    nextRow += sizes[2]!;
  }
  if (nextRow !== count) return entries;
  const ranges = sortedEntries.map(({ rows: { positions } }) => ({ positions, first: 0, count: positions.length }));
  const rows = { ...sortedEntries[0]!.rows, positions: PositionList.concatenate(ranges) };
  return [{ value: first.value, rows, origin, sizes: first.sizes.with(2, count) }];
}

/** Returns the part of a region that a view covers. */
function visibleEntry(layout: StridedLayout, region: Region): ContentEntry | undefined {
  const { value, rows, box } = region;
  if (layout.low >= box.high || box.low >= layout.high) return undefined;
  const { sizes } = layout.box;
  if (areEqualBoxes(layout.box, box)) return { value, rows, origin, sizes };
  if (isFill(value) && isDense(box) && layout.low >= box.low && layout.high <= box.high) {
    return { value, rows, origin, sizes };
  }
  const offset = findOrigin(layout.box, box);
  if (!offset) return undefined;
  const intersection = intersect(layout.box, box, offset);
  return {
    value,
    rows: shiftRows(region, intersection.originInSecond, intersection.sizes),
    origin: intersection.originInFirst,
    sizes: intersection.sizes,
  };
}

/** Joins entries for adjacent ranges of columns that have the same value and the same rows. */
function joinColumns(entries: ContentEntry[], columns: number): ContentEntry[] {
  if (entries.every(({ sizes }) => sizes[3] === columns)) return entries;
  const result: ContentEntry[] = [];
  for (const entry of entries.toSorted((a, b) => a.origin[3]! - b.origin[3]!)) {
    const leftIndex = result.findIndex((other) => areAdjacentColumns(other, entry));
    if (leftIndex < 0) result.push(entry);
    else
      result[leftIndex] = {
        ...result[leftIndex]!,
        sizes: entry.sizes.with(3, result[leftIndex]!.sizes[3]! + entry.sizes[3]!),
      };
  }
  return result;
}

function areAdjacentColumns(a: ContentEntry, b: ContentEntry): boolean {
  for (let i = 0; i < 3; i++) if (a.origin[i] !== b.origin[i] || a.sizes[i] !== b.sizes[i]) return false;
  if (a.value !== b.value || a.origin[3]! + a.sizes[3]! !== b.origin[3]) return false;
  if (isFill(a.value)) return true;
  const [x, y] = [a.rows, b.rows];
  const isConsecutive = y.column === x.column + a.sizes[3]!;
  return isConsecutive && x.batch === y.batch && x.head === y.head && x.positions.equals(y.positions);
}

/**
 * Adds the parts of a region outside a view; nothing if the overlap is not a box. Returns how many elements of the view
 * are known to belong to the region.
 */
function addRemainder(remaining: Region[], region: Region, layout: StridedLayout): number {
  const { box } = region;
  if (layout.low >= box.high || box.low >= layout.high) {
    remaining.push(region);
    return 0;
  }
  const isContiguous = layout.high - layout.low === layout.size;
  if (isContiguous && layout.low <= box.low && box.high <= layout.high) return volume(box.sizes);
  // A contiguous view may cover several rows of a box with gaps, whose intersection need not be a box.
  if (isContiguous) {
    let numElements = volume(box.sizes);
    for (const [low, high] of [[box.low, layout.low] as const, [layout.high, box.high] as const]) {
      for (const range of clipToRange(box, low, high)) {
        remaining.push(region.subRegion(range));
        numElements -= volume(range.sizes);
      }
    }
    return numElements;
  }
  const offset = findOrigin(layout.box, box);
  if (offset) {
    const { originInSecond, sizes } = intersect(layout.box, box, offset);
    for (const range of complement(box.sizes, { origin: originInSecond, sizes }))
      remaining.push(region.subRegion(range));
    return volume(sizes);
  }
  if (!haveDifferentStrides(layout.box, box)) remaining.push(region);
  return 0;
}
