import fc from "fast-check";
import { expect, test } from "vitest";
import * as masks from "../../src/mask/index.ts";
import { resolveSlices } from "../../src/mask/verify.ts";
import { isVisible, isVisibleUnchecked, visiblePairs, visiblePairsUnchecked } from "../../src/mask/visibility.ts";
import { clipKeys, clipQueries, visibleKeyRange, type Slice } from "../../src/mask/slice.ts";
import { findOverlap, slicesOverlap } from "../../src/mask/overlap.ts";
import { positions } from "../../src/placement/span.ts";
import { anyRange, anySlice, listPairs } from "./pairs.ts";

const runOptions = { numRuns: 3000 };
const parseKey = (pair: string) => Number(pair.split(",")[1]);
const parseQuery = (pair: string) => Number(pair.split(",")[0]);

test("visibleKeyRange contains as many keys as the row has visible pairs", () => {
  fc.assert(
    fc.property(anySlice, (slice) => {
      const { start, end } = visibleKeyRange(slice, slice.q0);
      expect(Math.max(0, end - start)).toBe(listPairs(slice).filter((pair) => parseQuery(pair) === slice.q0).length);
    }),
    runOptions,
  );
});

test("clipQueries keeps exactly the pairs of the given rows", () => {
  fc.assert(
    fc.property(anySlice, anyRange, (slice, [start, end]) => {
      const clippedSlice = clipQueries(slice, start, end);
      const expectedPairs = listPairs(slice).filter((pair) => parseQuery(pair) >= start && parseQuery(pair) < end);
      expect(clippedSlice ? listPairs(clippedSlice) : []).toEqual(expectedPairs);
      expect(clippedSlice === undefined).toBe(expectedPairs.length === 0);
    }),
    runOptions,
  );
});

test("clipKeys keeps exactly the pairs of the given columns, in at most three slices", () => {
  fc.assert(
    fc.property(anySlice, anyRange, (slice, [start, end]) => {
      const clipped = clipKeys(slice, start, end);
      const expectedPairs = listPairs(slice).filter((pair) => parseKey(pair) >= start && parseKey(pair) < end);
      expect(listPairs(...clipped)).toEqual(expectedPairs);
      expect(clipped.length).toBeLessThanOrEqual(3);
      expect(clipped.every(({ q0, q1, k0, k1 }) => q0 < q1 && k0 < k1)).toBe(true);
    }),
    runOptions,
  );
});

test("slicesOverlap is true exactly if two slices share a pair", () => {
  fc.assert(
    fc.property(anySlice, anySlice, (a, b) => {
      const pairs = listPairs(a, b);
      expect(slicesOverlap(a, b)).toBe(new Set(pairs).size < pairs.length);
    }),
    runOptions,
  );
});

test("findOverlap finds an overlap exactly if two slices of a list share a pair", () => {
  fc.assert(
    fc.property(fc.array(anySlice, { maxLength: 5 }), (slices) => {
      const pairs = listPairs(...slices);
      expect(findOverlap(slices) !== undefined).toBe(new Set(pairs).size < pairs.length);
    }),
    runOptions,
  );
});

test("isVisible equals a check of all pairs for contiguous ranges", () => {
  fc.assert(
    fc.property(fc.array(anySlice, { maxLength: 3 }), anyRange, anyRange, (slices, [q0, q1], [k0, k1]) => {
      const isInBox = (pair: string) => {
        const [q, k] = [parseQuery(pair), parseKey(pair)];
        return q >= q0 && q < q1 && k >= k0 && k < k1;
      };
      const queries = [{ start: q0, length: q1 - q0, step: 1 }];
      const keys = [{ start: k0, length: k1 - k0, step: 1 }];
      expect(isVisible(queries, keys, slices)).toBe(listPairs(...slices).some(isInBox));
    }),
    runOptions,
  );
});

test("visiblePairs and isVisible equal a check of all pairs for spans with any step", () => {
  const anySpan = fc
    .tuple(fc.nat(12), fc.nat(6), fc.integer({ min: 1, max: 4 }))
    .map(([start, length, step]) => ({ start, length, step }));
  let numHidden = 0;
  fc.assert(
    fc.property(anySlice, anySpan, anySpan, (slice, q, k) => {
      const [rows, columns] = [positions([q]), positions([k])];
      const visiblePairList = listPairs(slice).filter(
        (pair) => rows.includes(parseQuery(pair)) && columns.includes(parseKey(pair)),
      );
      expect(visiblePairs([q], [k], [slice])).toBe(visiblePairList.length);
      expect(isVisible([q], [k], [slice])).toBe(visiblePairList.length > 0);
      if (visiblePairList.length === 0) numHidden++;
    }),
    runOptions,
  );
  expect(numHidden).toBeGreaterThan(runOptions.numRuns / 10);
});

const anySpans = fc.array(
  fc
    .tuple(fc.nat(60), fc.nat(8), fc.integer({ min: 1, max: 3 }))
    .map(([start, length, step]) => ({ start, length, step })),
  { maxLength: 3 },
);

test("a resolved list of many slices gives the same visible pairs as an unindexed copy", () => {
  const randomTrials = [
    masks.documents(new Array<number>(40).fill(2), "causal"),
    masks.or(masks.documents(new Array<number>(40).fill(2)), masks.globalTokens([3, 40], { queries: true })),
    masks.blockCausal(2),
    masks.fromSlices(Array.from({ length: 40 }, (_, i) => ({ q0: 0, q1: 80, k0: 2 * i, k1: 2 * i + 1, type: "full" }))),
  ];
  for (const mask of randomTrials) {
    const resolvedSlices = resolveSlices(mask, 80, 80);
    const copiedSlices = [...resolvedSlices];
    expect(resolvedSlices.length).toBeGreaterThan(32);
    fc.assert(
      fc.property(anySpans, anySpans, (queries, keys) => {
        const pairs = visiblePairs(queries, keys, copiedSlices);
        expect(visiblePairs(queries, keys, resolvedSlices)).toBe(pairs);
        expect(isVisible(queries, keys, resolvedSlices)).toBe(pairs > 0);
        expect(isVisible(queries, keys, copiedSlices)).toBe(pairs > 0);
      }),
      { numRuns: 500 },
    );
  }
});

test("visibility checks read only the documents that intersect a tile", () => {
  let readCount = 0;
  const countingSlices = masks
    .documents(new Array<number>(10_000).fill(10))
    .slices(100_000, 100_000)
    .map((slice) => ({
      ...slice,
      get type() {
        readCount++;
        return slice.type;
      },
    }));
  const slices = resolveSlices({ name: "watched", slices: () => countingSlices }, 100_000, 100_000);
  const span = (start: number) => [{ start, length: 200, step: 1 }];
  visiblePairs(span(0), span(0), slices); // creates the index
  isVisibleUnchecked(span(0), span(5000), slices);
  readCount = 0;
  expect(visiblePairsUnchecked(span(500), span(600), slices)).toBe(1000);
  expect(isVisibleUnchecked(span(500), span(5000), slices)).toBe(false);
  expect(readCount).toBeLessThan(200);
});

const createSquare = (start: number, type: Slice["type"]) => ({
  q0: start,
  q1: start + 10,
  k0: start,
  k1: start + 10,
  type,
});

test.each([
  ["documents", Array.from({ length: 10_000 }, (_, i) => createSquare(10 * i, "causal"))],
  [
    "bands over the same queries",
    Array.from({ length: 10_000 }, (_, i) => ({ ...createSquare(10 * i, "full"), q0: 0, q1: 100_000 })),
  ],
  [
    "bands over the same keys",
    Array.from({ length: 10_000 }, (_, i) => ({ ...createSquare(10 * i, "full"), k0: 0, k1: 100_000 })),
  ],
])("findOverlap needs O(n log n) comparisons for 10 000 %s", (_, slices) => {
  const comparisonCount = countComparisons(slices);
  expect(comparisonCount).toBeLessThan(50 * slices.length);
});

/** Counts how often slices are read. Counts are used instead of times so that the machine's load does not matter. */
function countComparisons(slices: readonly Slice[]): number {
  let reads = 0;
  const watched = slices.map((slice) => ({
    ...slice,
    get type() {
      reads++;
      return slice.type;
    },
  }));
  expect(findOverlap(watched)).toBeUndefined();
  return reads;
}
