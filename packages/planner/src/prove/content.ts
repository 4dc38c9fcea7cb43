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

// What a storage holds, as strided boxes of elements: intervals, never single elements. A box that is read through other
// strides than it was written through is not found, so whatever scrambles rows is rejected.

/** Part of a view and what it holds; `rows` are those of its own origin. */
export interface ContentEntry {
  readonly value: MemoryValue;
  readonly rows: Rows;
  /** Its origin and sizes in the view: batch, head, row, column. */
  readonly origin: readonly number[];
  readonly sizes: readonly number[];
}

/** What a view shows. */
export interface ReadResult {
  readonly entries: readonly ContentEntry[];
  /** Whether every element of the view is known. */
  readonly isComplete: boolean;
  /** The last check of this very read: what was expected, and what it found. */
  cachedCheck?: { readonly name: string; readonly positions: object; readonly result: unknown } | undefined;
}

/** What a storage holds; never changed, so that one that is sent from rank to rank is looked at once. */
export interface Content {
  /** Boxes that share no element. */
  readonly regions: readonly Region[];
  /** The one region that a view shows, if it is just that: so it is nearly always. */
  singleRegion(layout: StridedLayout): Region | undefined;
  read(layout: StridedLayout): ReadResult;
  /** Entries in the place of what the view showed before. */
  write(layout: StridedLayout, entries: readonly ContentEntry[]): Content;
  /** What a range of elements holds, counted from its first: what a message carries. */
  range(low: number, high: number): Content;
  /** This, further on by some elements. */
  shiftedRegions(delta: number): readonly Region[];
  /** A message in the place of what a dense view showed; `size` is that of the storage. */
  receive(layout: StridedLayout, message: Content, size: number): Content;
}

/** What holds these regions. */
export function toContent(regions: readonly Region[]): Content {
  return regions.length === 1 ? regions[0]! : new Regions(regions);
}

/**
 * A box of memory and what lies in it. Also what a storage holds if that is all, and what a view shows that is just this box:
 * nearly everything that is written, sent and read is one of these, and no more objects are made for it.
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

  /** The same, further on by some elements. */
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

  /** A range of elements as one that begins at `at`, where these are whole rows of all that is here; else undefined. */
  // oxlint-disable-next-line max-params -- a range, and where to; called for each of millions of messages
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

/** Elements of a row: of all sequences, heads and columns. */
export function rowWidth({ sizes }: Box): number {
  return sizes[0]! * sizes[1]! * sizes[3]!;
}

/** The rows of a part of something. A fill has none: its rows are nowhere, wherever it is cut. */
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

/** Among so many regions one is looked for by walking along them. */
const MAX_LINEAR_SEARCH_REGIONS = 8;

function areOrdered(regions: readonly Region[]): boolean {
  for (let i = 1; i < regions.length; i++) if (regions[i]!.box.low < regions[i - 1]!.box.high) return false;
  return true;
}

/** Several, or none. */
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
      // Most are read through one view only, and need no map.
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

  /** Where the region is that a view shows, and nothing else; −1 if it shows part of one, or several. */
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

  /** The regions that may have elements of a range, and perhaps others. */
  #regionsNear(low: number, high: number): readonly Region[] {
    if (!this.#isOrdered()) return this.regions;
    const first = this.#firstEndingAfter(low);
    let end = first;
    while (end < this.regions.length && this.regions[end]!.box.low < high) end++;
    return this.regions.slice(first, end);
  }

  /** Of ordered regions the first that ends behind an element. */
  #firstEndingAfter(element: number): number {
    let [low, high] = [0, this.regions.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.regions[middle]!.box.high <= element) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Whether there are many, one behind the other, so that a search finds one sooner than a walk. */
  #isOrdered(): boolean {
    return (this.#cachedIsOrdered ??= this.regions.length > MAX_LINEAR_SEARCH_REGIONS && areOrdered(this.regions));
  }

  #regionsOutside(layout: StridedLayout): readonly Region[] {
    if (!this.#isOrdered()) return this.#subtractLayout(this.regions, layout);
    // What a message leaves of the regions that it meets; all others stay.
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
    // Messages mostly come to where nothing is yet.
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

/** Memory that was never written. */
export const uninitializedContent: Content = new Regions(noRegions);

function toRegion({ box }: StridedLayout, { value, rows, origin, sizes }: ContentEntry): Region {
  return new Region(value, rows, subBox(box, origin, sizes));
}

function readRegions(layout: StridedLayout, regions: readonly Region[]): ReadResult {
  const entries: ContentEntry[] = [];
  let numElements = 0;
  // Regions are apart: once all of the view is known, no other shows in it.
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

/** Rows of an input that were put together again from several ranks' become one. */
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

/** What of a region a view shows. */
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

/** Rows that were put together again from ranges of columns become one: the same value of the same rows, side by side. */
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
 * Adds what is left of a region outside a view: nothing when they overlap in a way that no box describes. Returns how many
 * elements of the view were known to be the region's.
 */
function addRemainder(remaining: Region[], region: Region, layout: StridedLayout): number {
  const { box } = region;
  if (layout.low >= box.high || box.low >= layout.high) {
    remaining.push(region);
    return 0;
  }
  const isContiguous = layout.high - layout.low === layout.size;
  if (isContiguous && layout.low <= box.low && box.high <= layout.high) return volume(box.sizes);
  if (isContiguous && isDense(box)) {
    for (const range of clipToRange(box, box.low, layout.low)) remaining.push(region.subRegion(range));
    for (const range of clipToRange(box, layout.high, box.high)) remaining.push(region.subRegion(range));
    return Math.min(layout.high, box.high) - Math.max(layout.low, box.low);
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
