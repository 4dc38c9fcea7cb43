import fc from "fast-check";
import { expect, test } from "vitest";
import { findOverlap } from "../../src/mask/overlap.ts";
import { totalArea, createBand, intersectSliceLists, mergeIntoDisjoint } from "../../src/mask/region.ts";
import { type Slice, sliceArea } from "../../src/mask/slice.ts";
import { anySlice, listPairs, pairsWhere } from "./pairs.ts";

const runOptions = { numRuns: 3000 };
const anySlices = fc.array(anySlice, { maxLength: 6 });

test("sliceArea equals the number of pairs of a slice", () => {
  fc.assert(
    fc.property(anySlice, (slice) => {
      expect(sliceArea(slice)).toBe(listPairs(slice).length);
    }),
    runOptions,
  );
});

test("mergeIntoDisjoint keeps each pair once, in as many slices as a row-by-row merge", () => {
  fc.assert(
    fc.property(anySlices, (slices) => {
      const expectedPairs = [...new Set(listPairs(...slices))];
      const union = mergeIntoDisjoint(slices);
      expect(listPairs(...union)).toEqual(expectedPairs);
      expect(findOverlap(union)).toBeUndefined();
      expect(totalArea(union)).toBe(expectedPairs.length);
      expect(union).toHaveLength(countStacks(new Set(expectedPairs)));
      expect(union).toEqual(union.toSorted((a, b) => a.q0 - b.q0 || a.k0 - b.k0));
    }),
    runOptions,
  );
});

test("mergeIntoDisjoint returns the same slices for every description of a region", () => {
  fc.assert(
    fc.property(anySlices, fc.infiniteStream(fc.nat()), (slices, numbers) => {
      const union = mergeIntoDisjoint(slices);
      const cells = union.flatMap(splitIntoCells);
      for (const [i] of cells.entries()) {
        const j = numbers.next().value % (i + 1);
        [cells[i], cells[j]] = [cells[j]!, cells[i]!];
      }
      expect(mergeIntoDisjoint(cells)).toEqual(union);
      expect(mergeIntoDisjoint([...slices, ...union].toReversed())).toEqual(union);
    }),
    { numRuns: 500 },
  );
});

test("intersectSliceLists returns the common pairs, each once", () => {
  fc.assert(
    fc.property(anySlices, anySlices, (firstSlices, secondSlices) => {
      const [a, b] = [mergeIntoDisjoint(firstSlices), mergeIntoDisjoint(secondSlices)];
      const secondPairs = new Set(listPairs(...b));
      const expectedPairs = listPairs(...a).filter((pair) => secondPairs.has(pair));
      expect(listPairs(...intersectSliceLists(a, b))).toEqual(expectedPairs);
      expect(listPairs(...intersectSliceLists(b, a))).toEqual(expectedPairs);
      expect(intersectSliceLists(a, a).length).toBeLessThanOrEqual(a.length);
    }),
    runOptions,
  );
});

test("intersectSliceLists with a full slice does not split the slices", () => {
  const createStrips = (k0: number, k1: number): Slice[] =>
    Array.from({ length: 8 }, (_, i) => ({ q0: 2 * i, q1: 2 * i + 1, k0, k1, type: "full" }));
  const comb = [...createStrips(0, 5), { q0: 0, q1: 16, k0: 5, k1: 6, type: "full" } as const];
  const fullSlice: Slice = { q0: 0, q1: 16, k0: 0, k1: 6, type: "full" };
  expect(mergeIntoDisjoint(comb)).toHaveLength(16);
  expect(intersectSliceLists(comb, [fullSlice])).toHaveLength(9);
});

test("createBand contains the keys on both sides of each query's diagonal", () => {
  const anyWindowSide = fc.oneof(
    fc.nat(8),
    fc.constant(Number.POSITIVE_INFINITY),
    fc.constant(Number.MAX_SAFE_INTEGER),
  );
  fc.assert(
    fc.property(fc.nat(9), fc.nat(9), anyWindowSide, anyWindowSide, (queries, keys, left, right) => {
      const diagonalKey = (q: number) => q + keys - queries;
      const expectedPairs = pairsWhere(
        queries,
        keys,
        (q, k) => k >= diagonalKey(q) - left && k <= diagonalKey(q) + right,
      );
      expect(listPairs(...createBand(queries, keys, { left, right }))).toEqual(expectedPairs);
    }),
    runOptions,
  );
});

function splitIntoCells({ q0, k0, ...sliceFields }: Slice): Slice[] {
  return listPairs({ q0, k0, ...sliceFields }).map((pair) => {
    const [q, k] = pair.split(",").map(Number) as [number, number];
    return { q0: q, q1: q + 1, k0: k, k1: k + 1, type: "full" };
  });
}

interface RunStack {
  readonly start: number;
  readonly end: number;
  /** Shift of the borders from the previous to the last row; undefined for a single row. */
  readonly borderShift?: string;
}

/**
 * Counts the slices of a region row by row. A run continues a run of the previous row as long as its borders move in
 * the same way.
 */
function countStacks(pairs: ReadonlySet<string>): number {
  let [count, openStacks] = [0, [] as readonly RunStack[]];
  for (let q = 0; q < 20; q++) {
    const nextStacks: RunStack[] = [];
    for (let start = 0; start < 20; start++) {
      if (!pairs.has(`${q},${start}`)) continue;
      let end = start + 1;
      while (pairs.has(`${q},${end}`)) end++;
      const computeShift = (stack: RunStack) => `${start - stack.start} ${end - stack.end}`;
      const continuedStack = openStacks.find(
        (stack) =>
          ["0 0", "0 1", "1 0", "1 1"].includes(computeShift(stack)) &&
          (stack.borderShift ?? computeShift(stack)) === computeShift(stack),
      );
      nextStacks.push({ start, end, ...(continuedStack && { borderShift: computeShift(continuedStack) }) });
      if (!continuedStack) count++;
      start = end;
    }
    openStacks = nextStacks;
  }
  return count;
}
