import {
  type BorderLine,
  countIntersectingPairs,
  leftBorder,
  rangeOfKeys,
  rangeOfQueries,
  rightBorder,
} from "./overlap.ts";
import { sliceArea, sliceTypeFor, type Slice } from "./slice.ts";

// Unions and intersections of regions of the (query, key) plane, as slices. A border of a slice is a line in q of slope
// 0 or 1, so the rows where a region changes are computed from intersections of two lines, without iterating over rows.

/** Rows [q0, q1) whose visible keys are [left, right). Each row has at least one visible key. */
interface Trapezoid {
  readonly q0: number;
  readonly q1: number;
  readonly left: BorderLine;
  readonly right: BorderLine;
}

function borderKey({ intercept, slope }: BorderLine, q: number): number {
  return intercept + slope * q;
}

/** Returns the first row in which `a` is greater than `b`, for lines with a ≤ b in the first row considered. */
function firstRowBeyond(a: BorderLine, b: BorderLine): number {
  return a.slope > b.slope ? b.intercept - a.intercept + 1 : Number.POSITIVE_INFINITY;
}

/** Returns the rows of a slice that have visible keys: one trapezoid or none. */
function toTrapezoids(slice: Slice): Trapezoid[] {
  const [left, right] = [leftBorder(slice), rightBorder(slice)];
  return trimEmptyRows({ q0: slice.q0, q1: slice.q1, left, right });
}

/** Removes the rows in which the left border is not before the right border. Returns nothing if no row remains. */
function trimEmptyRows({ q0, q1, left, right }: Trapezoid): Trapezoid[] {
  const gap = right.intercept - left.intercept;
  const firstRow = right.slope > left.slope ? Math.max(q0, 1 - gap) : q0;
  const end = right.slope < left.slope ? Math.min(q1, gap) : q1;
  if (firstRow >= end || (right.slope === left.slope && gap <= 0)) return [];
  return [{ q0: firstRow, q1: end, left, right }];
}

function toSlice({ q0, q1, left, right }: Trapezoid): Slice {
  // A single row has the same pairs with any type.
  const type = q1 - q0 === 1 ? "full" : sliceTypeFor(left.slope === 1, right.slope === 1);
  return { q0, q1, k0: borderKey(left, q0), k1: borderKey(right, q1 - 1), type };
}

/**
 * Returns the union of slices as disjoint slices. The keys of each row are split into maximal runs, and each slice is
 * extended over as many rows as possible, from the first row on. Equal regions yield equal slices, regardless of the
 * input slices.
 */
export function mergeIntoDisjoint(slices: readonly Slice[]): Slice[] {
  const pendingTrapezoids = slices.flatMap(toTrapezoids).toSorted((a, b) => a.q0 - b.q0);
  const builder = new TrapezoidBuilder();
  let openTrapezoids: Trapezoid[] = [];
  let nextPendingIndex = 0;
  for (let q = 0; openTrapezoids.length > 0 || nextPendingIndex < pendingTrapezoids.length; ) {
    if (openTrapezoids.length === 0) q = pendingTrapezoids[nextPendingIndex]!.q0;
    while (nextPendingIndex < pendingTrapezoids.length && pendingTrapezoids[nextPendingIndex]!.q0 === q)
      openTrapezoids.push(pendingTrapezoids[nextPendingIndex++]!);
    // Already nearly sorted from the previous rows.
    openTrapezoids.sort((a, b) => borderKey(a.left, q) - borderKey(b.left, q) || a.left.slope - b.left.slope);
    const nextBoundary = openTrapezoids.reduce(
      (min, { q1 }) => Math.min(min, q1),
      pendingTrapezoids[nextPendingIndex]?.q0 ?? Number.POSITIVE_INFINITY,
    );
    const { runs, end } = findKeyRuns(openTrapezoids, q, nextBoundary);
    builder.addRuns(runs, q, end);
    q = end;
    openTrapezoids = openTrapezoids.filter(({ q1 }) => q1 > q);
  }
  return builder.finish();
}

/** A contiguous run of visible keys of a row. The borders are lines that are valid for a range of rows. */
interface KeyRun {
  readonly left: BorderLine;
  readonly right: BorderLine;
}

/**
 * Returns the key runs of row q, given trapezoids ordered by their left borders, and the row `end` up to which the
 * lines of the runs are valid: `limit`, or the first row in which two lines cross so that the runs change.
 */
function findKeyRuns(openTrapezoids: readonly Trapezoid[], q: number, limit: number): { runs: KeyRun[]; end: number } {
  const runs: KeyRun[] = [];
  let end = limit;
  let { left, right } = openTrapezoids[0]!;
  for (const trapezoid of openTrapezoids) {
    if (borderKey(trapezoid.left, q) > borderKey(right, q)) {
      runs.push({ left, right });
      end = Math.min(end, firstRowBeyond(right, trapezoid.left) - 1); // from that row on the runs touch
      ({ left, right } = trapezoid);
      continue;
    }
    const rightBorderDifference =
      borderKey(trapezoid.right, q) - borderKey(right, q) || trapezoid.right.slope - right.slope;
    end = Math.min(
      end,
      firstRowBeyond(left, trapezoid.left), // this trapezoid begins the run
      firstRowBeyond(trapezoid.left, right), // this trapezoid leaves the run
      rightBorderDifference > 0 ? firstRowBeyond(right, trapezoid.right) : firstRowBeyond(trapezoid.right, right), // the other ends the run
    );
    if (rightBorderDifference > 0) right = trapezoid.right;
  }
  runs.push({ left, right });
  return { runs, end };
}

/** Joins runs of consecutive rows to trapezoids as long as each continues the previous one. */
class TrapezoidBuilder {
  readonly #finishedSlices: Slice[] = [];
  /** Trapezoids that end at the last row so far, ordered by their keys. */
  #openTrapezoids: Trapezoid[] = [];

  /** Adds the runs of rows [q, end), ordered from left to right, with a gap of at least one key between them. */
  addRuns(runs: readonly KeyRun[], q: number, end: number): void {
    const nextOpenTrapezoids: Trapezoid[] = [];
    let i = 0;
    for (const run of runs) {
      const start = borderKey(run.left, q);
      // Trapezoids that end before this run begins have no continuation, because borders move by at most one key per
      // row.
      while (i < this.#openTrapezoids.length && borderKey(this.#openTrapezoids[i]!.right, q - 1) < start)
        this.#close(this.#openTrapezoids[i++]!);
      const continuation =
        i < this.#openTrapezoids.length ? extendTrapezoid(this.#openTrapezoids[i]!, run, q) : undefined;
      if (continuation === undefined) nextOpenTrapezoids.push({ q0: q, q1: end, ...run });
      else {
        i++;
        nextOpenTrapezoids.push(this.#extend(continuation, run, end));
      }
    }
    while (i < this.#openTrapezoids.length) this.#close(this.#openTrapezoids[i++]!);
    this.#openTrapezoids = nextOpenTrapezoids;
  }

  finish(): Slice[] {
    for (const trapezoid of this.#openTrapezoids) this.#close(trapezoid);
    return this.#finishedSlices.sort((a, b) => a.q0 - b.q0 || a.k0 - b.k0);
  }

  /**
   * Extends a trapezoid by a run. Lines with different slopes agree in one row only, so that the remaining rows form a
   * new trapezoid.
   */
  #extend(trapezoid: Trapezoid, run: KeyRun, end: number): Trapezoid {
    const hasSameSlopes = trapezoid.left.slope === run.left.slope && trapezoid.right.slope === run.right.slope;
    if (hasSameSlopes || trapezoid.q1 === end) return { ...trapezoid, q1: end };
    this.#close(trapezoid);
    return { q0: trapezoid.q1, q1: end, ...run };
  }

  #close(trapezoid: Trapezoid): void {
    this.#finishedSlices.push(toSlice(trapezoid));
  }
}

/**
 * Returns the trapezoid extended by row q if the run continues its borders. A single row does not determine the slopes
 * of the borders yet.
 */
function extendTrapezoid(trapezoid: Trapezoid, run: KeyRun, q: number): Trapezoid | undefined {
  if (trapezoid.q1 !== q) return undefined;
  const isSingleRow = trapezoid.q1 - trapezoid.q0 === 1;
  const left = extendBorder(trapezoid.left, borderKey(run.left, q), { q, isSingleRow });
  const right = extendBorder(trapezoid.right, borderKey(run.right, q), { q, isSingleRow });
  return left && right && { q0: trapezoid.q0, q1: q + 1, left, right };
}

function extendBorder(
  border: BorderLine,
  value: number,
  { q, isSingleRow }: { q: number; isSingleRow: boolean },
): BorderLine | undefined {
  if (!isSingleRow) return borderKey(border, q) === value ? border : undefined;
  const step = value - borderKey(border, q - 1);
  return step === 0 || step === 1 ? { intercept: value - step * q, slope: step } : undefined;
}

/** Returns the intersection of two lists of disjoint slices, as disjoint slices. */
export function intersectSliceLists(a: readonly Slice[], b: readonly Slice[]): Slice[] {
  const intersections: Slice[] = [];
  forEachIntersectingPair(a, b, (sliceA, sliceB) => {
    for (const x of toTrapezoids(sliceA))
      for (const y of toTrapezoids(sliceB)) intersections.push(...intersectTrapezoids(x, y).map(toSlice));
  });
  const mergedSlices = mergeIntoDisjoint(intersections);
  return mergedSlices.length <= intersections.length ? mergedSlices : intersections;
}

/**
 * Calls `visit` for each pair of slices, one of each list, whose ranges intersect along the queries or the keys,
 * whichever separates the lists better.
 */
function forEachIntersectingPair(a: readonly Slice[], b: readonly Slice[], visit: (a: Slice, b: Slice) => void): void {
  const taggedSlices = [
    ...a.map((slice) => ({ slice, isFirst: true })),
    ...b.map((slice) => ({ slice, isFirst: false })),
  ];
  const countCrossListPairs = (getRange: typeof rangeOfQueries): number =>
    countIntersectingPairs([...a, ...b], getRange) -
    countIntersectingPairs(a, getRange) -
    countIntersectingPairs(b, getRange);
  const getSweepRange =
    countCrossListPairs(rangeOfQueries) <= countCrossListPairs(rangeOfKeys) ? rangeOfQueries : rangeOfKeys;
  let [openSlicesA, openSlicesB]: [Slice[], Slice[]] = [[], []];
  for (const { slice, isFirst } of taggedSlices.toSorted(
    (x, y) => getSweepRange(x.slice)[0] - getSweepRange(y.slice)[0],
  )) {
    const start = getSweepRange(slice)[0];
    const reachesStart = (openSlice: Slice): boolean => getSweepRange(openSlice)[1] > start;
    if (isFirst) {
      openSlicesB = openSlicesB.filter(reachesStart);
      for (const sliceB of openSlicesB) visit(slice, sliceB);
      openSlicesA.push(slice);
    } else {
      openSlicesA = openSlicesA.filter(reachesStart);
      for (const sliceA of openSlicesA) visit(sliceA, slice);
      openSlicesB.push(slice);
    }
  }
}

/**
 * Returns the intersection of two trapezoids. It has at most three pieces, because the left borders cross at most once,
 * and so do the right borders.
 */
function intersectTrapezoids(a: Trapezoid, b: Trapezoid): Trapezoid[] {
  const q0 = Math.max(a.q0, b.q0);
  const q1 = Math.min(a.q1, b.q1);
  if (q0 >= q1) return [];
  const clampRow = (row: number): number => Math.min(q1, Math.max(q0, row));
  const crossingRows = [firstRowOfCrossing(a.left, b.left), firstRowOfCrossing(a.right, b.right)].map(clampRow);
  const rows = [q0, Math.min(...crossingRows), Math.max(...crossingRows), q1];
  return [0, 1, 2].flatMap((i) => {
    const [startRow, endRow] = [rows[i]!, rows[i + 1]!];
    if (startRow >= endRow) return [];
    const left = isRightOf(a.left, b.left, startRow) ? a.left : b.left;
    const right = isRightOf(a.right, b.right, startRow) ? b.right : a.right;
    return trimEmptyRows({ q0: startRow, q1: endRow, left, right });
  });
}

/**
 * Returns the first row in which the steeper of two borders is greater than the other; infinity if the slopes are
 * equal.
 */
function firstRowOfCrossing(a: BorderLine, b: BorderLine): number {
  return Math.min(firstRowBeyond(a, b), firstRowBeyond(b, a));
}

/** Returns whether a is greater than b in row q, or equal there and greater in later rows. */
function isRightOf(a: BorderLine, b: BorderLine, q: number): boolean {
  return (borderKey(a, q) - borderKey(b, q) || a.slope - b.slope) > 0;
}

/**
 * Returns the pairs with −left ≤ k − (q + keys − queries) ≤ right for sequences of these lengths. Infinity means
 * unbounded. Bottom-right aligned.
 */
export function createBand(queries: number, keys: number, { left, right }: { left: number; right: number }): Slice[] {
  const shift = keys - queries;
  const start: BorderLine = Number.isFinite(left)
    ? { intercept: shift - Math.min(left, queries + keys), slope: 1 }
    : { intercept: 0, slope: 0 };
  const end: BorderLine = Number.isFinite(right)
    ? { intercept: shift + Math.min(right, queries + keys) + 1, slope: 1 }
    : { intercept: keys, slope: 0 };
  const fullTrapezoid: Trapezoid = {
    q0: 0,
    q1: queries,
    left: { intercept: 0, slope: 0 },
    right: { intercept: keys, slope: 0 },
  };
  return mergeIntoDisjoint(
    intersectTrapezoids({ q0: 0, q1: queries, left: start, right: end }, fullTrapezoid).map(toSlice),
  );
}

/** Returns the number of pairs of disjoint slices. */
export function totalArea(slices: readonly Slice[]): number {
  return slices.reduce((sum, slice) => sum + sliceArea(slice), 0);
}
