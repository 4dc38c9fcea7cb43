import { isDense, areEqualBoxes, findOrigin, haveEqualRowShapes, intersect, clipToRange } from "./box.ts";
import { type Content, toContent, type ContentEntry, Region, type ReadResult, shiftRows } from "./content.ts";
import { EMPTY_SUM, type SumTable } from "./sums.ts";
import {
  haveSameKind,
  isFill,
  isSum,
  type ValueKind,
  decodeKind,
  decodePayload,
  type Rows,
  type MemoryValue,
  encodeValue,
  type InitialValues,
} from "./values.ts";

/** A value and its rows. */
export type ValueWithRows = Pick<ContentEntry, "value" | "rows">;

/** Tables with which values are combined. */
export interface CombineContext {
  readonly sums: SumTable;
  readonly initialValues: InitialValues;
}

/**
 * Whether an entry has the rows that its place in a view requires, where `expected` are the rows at the view's origin.
 */
export function hasExpectedRows({ origin, sizes, rows }: ContentEntry, expected: Rows): boolean {
  return (
    rows.batch === expected.batch + origin[0]! &&
    rows.head === expected.head + origin[1]! &&
    rows.column === expected.column + origin[3]! &&
    rows.positions.equals(expected.positions.subset(origin[2]!, sizes[2]!))
  );
}

/** Returns the expected rows at the place of an entry that has none. */
export function shiftExpectedRows({ origin, sizes }: ContentEntry, expected: Rows): Rows {
  return shiftRows({ value: encodeValue("out"), rows: expected }, origin, sizes);
}

/** Whether rows have the same sequences, heads, columns and positions. */
export function haveEqualRows(a: Rows, b: Rows): boolean {
  return (
    a === b || (a.batch === b.batch && a.head === b.head && a.column === b.column && a.positions.equals(b.positions))
  );
}

/** How two values are combined: as parts of a state, or as sums of products. */
export type CombineMode = "out" | "lse" | "add";

/**
 * Returns the combination of two values; undefined if it has no meaning. `out` and `lse` combine states of the same
 * queries, which may both be empty. `add` combines sums of products. Of these there are only gradients, because out and
 * lse over parts of the keys do not simply add up.
 */
export function combine(
  x: ValueWithRows,
  y: ValueWithRows,
  mode: CombineMode,
  { sums, initialValues }: CombineContext,
): ValueWithRows | undefined {
  const kind: ValueKind = mode === "add" ? "dq" : mode;
  if (initialValues.isInitial(y.value, kind)) return x;
  if (initialValues.isInitial(x.value, kind)) return y;
  if (!isSum(x.value) || !haveSameKind(x.value, y.value) || !haveEqualRows(x.rows, y.rows)) return undefined;
  const valueKind = decodeKind(x.value);
  if (mode === "add" ? valueKind === "out" || valueKind === "lse" : valueKind !== mode) return undefined;
  const sum = sums.join(decodePayload(x.value), decodePayload(y.value));
  return { value: encodeValue(valueKind, sum), rows: x.rows };
}

/**
 * Returns the sum that a value of a kind represents, the empty sum for the initial value; undefined for any other
 * value.
 */
export function decodeSum(value: MemoryValue, kind: ValueKind, initialValues: InitialValues): number | undefined {
  if (initialValues.isInitial(value, kind)) return EMPTY_SUM;
  return decodeKind(value) === kind ? decodePayload(value) : undefined;
}

/**
 * Yields the intersections of two views with equal numbers of sequences, heads and rows, box by box. Without columns
 * (lse has no D), both keep their last axis.
 */
export function* intersectEntries(
  a: ReadResult,
  b: ReadResult,
  includeColumns: boolean,
): Generator<readonly [ContentEntry, ContentEntry], void, undefined> {
  const numAxes = includeColumns ? 4 : 3;
  for (const entryA of a.entries) {
    for (const entryB of b.entries) {
      if (entryA.origin === entryB.origin && areEqualOnAxes(entryA.sizes, entryB.sizes, numAxes)) {
        yield [entryA, entryB];
        continue;
      }
      if (areDisjointEntries(entryA, entryB, numAxes)) continue;
      const intersectionOrigin = entryA.origin.map((c, i) => Math.max(c, entryB.origin[i]!));
      const sizes = intersectionOrigin.map(
        (c, i) => Math.min(entryA.origin[i]! + entryA.sizes[i]!, entryB.origin[i]! + entryB.sizes[i]!) - c,
      );
      yield [
        subEntry(entryA, intersectionOrigin, { sizes, axes: numAxes }),
        subEntry(entryB, intersectionOrigin, { sizes, axes: numAxes }),
      ];
    }
  }
}

function areDisjointEntries(a: ContentEntry, b: ContentEntry, numAxes: number): boolean {
  for (let i = 0; i < numAxes; i++) {
    if (a.origin[i]! >= b.origin[i]! + b.sizes[i]! || b.origin[i]! >= a.origin[i]! + a.sizes[i]!) return true;
  }
  return false;
}

function areEqualOnAxes(a: readonly number[], b: readonly number[], numAxes: number): boolean {
  for (let i = 0; i < numAxes; i++) if (a[i] !== b[i]) return false;
  return true;
}

function subEntry(
  entry: ContentEntry,
  start: readonly number[],
  { sizes: subSizes, axes: numAxes }: { sizes: readonly number[]; axes: number },
): ContentEntry {
  const origin = numAxes === 4 ? start : start.with(3, entry.origin[3]!);
  const sizes = numAxes === 4 ? subSizes : subSizes.with(3, entry.sizes[3]!);
  const offset = origin.map((c, i) => c - entry.origin[i]!);
  return { value: entry.value, rows: shiftRows(entry, offset, sizes), origin, sizes };
}

/**
 * Adds messages element by element. Gradients of the same rows become one sum. Anything else is unknown afterwards, and
 * so is what one of the messages lacks.
 */
export function reduceMessages(messages: readonly Content[], context: CombineContext): Content {
  return messages.reduce((total, message) => {
    if (total instanceof Region && message instanceof Region && areEqualBoxes(total.box, message.box)) {
      const sum = combine(total, message, "add", context);
      return sum ? new Region(sum.value, sum.rows, total.box) : toContent([]);
    }
    const regions: Region[] = [];
    for (const a of total.regions) {
      for (const b of message.regions) {
        for (const [x, y] of intersectRegions(a, b)) {
          const combinedEntry = combine(x, y, "add", context);
          if (combinedEntry) regions.push(new Region(combinedEntry.value, combinedEntry.rows, x.box));
        }
      }
    }
    return toContent(regions);
  });
}

/** Returns the parts of two regions that cover the same elements. */
function intersectRegions(a: Region, b: Region): (readonly [Region, Region])[] {
  if (a.box.high <= b.box.low || b.box.high <= a.box.low) return [];
  if (areEqualBoxes(a.box, b.box)) return [[a, b]];
  const rowRanges = intersectRowRanges(a, b);
  if (rowRanges) return [rowRanges];
  const offset = findOrigin(a.box, b.box);
  if (offset) {
    const { originInFirst, originInSecond, sizes } = intersect(a.box, b.box, offset);
    return [[a.subRegion({ origin: originInFirst, sizes }), b.subRegion({ origin: originInSecond, sizes })]];
  }
  // A fill has no rows to keep apart, so its intersection has the shape of the other region.
  if (isFill(b.value) && isDense(b.box))
    return clipToRange(a.box, b.box.low, b.box.high).map((each) => pairWithFill(a.subRegion(each), b));
  if (isFill(a.value) && isDense(a.box))
    return clipToRange(b.box, a.box.low, a.box.high).map((each) => pairWithFill(b.subRegion(each), a));
  return [];
}

/** Intersects dense rows of the same shape, as nearly all regions are; returns undefined for others. */
function intersectRowRanges(a: Region, b: Region): readonly [Region, Region] | undefined {
  if (isFill(a.value) || isFill(b.value) || !haveEqualRowShapes(a.box, b.box)) return undefined;
  const [low, high] = [Math.max(a.box.low, b.box.low), Math.min(a.box.high, b.box.high)];
  const x = a.box.low === low && a.box.high === high ? a : a.rowRange(low, high, low);
  const y = b.box.low === low && b.box.high === high ? b : b.rowRange(low, high, low);
  return x && y && [x, y];
}

function pairWithFill(region: Region, fill: Region): readonly [Region, Region] {
  return [region, new Region(fill.value, fill.rows, region.box)];
}
