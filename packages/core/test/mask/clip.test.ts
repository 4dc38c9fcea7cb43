import fc from "fast-check";
import { expect, test } from "vitest";
import { isVisible, visiblePairs } from "../../src/mask/visibility.ts";
import { clipKeys, clipQueries, visibleKeyRange, type Slice } from "../../src/mask/slice.ts";
import { findOverlap, slicesOverlap } from "../../src/mask/overlap.ts";
import { positions } from "../../src/placement/span.ts";
import { anyRange, anySlice, listPairs } from "./pairs.ts";

const runs = { numRuns: 3000 };
const keyOf = (pair: string) => Number(pair.split(",")[1]);
const queryOf = (pair: string) => Number(pair.split(",")[0]);

test("a row's range holds its pairs", () => {
  fc.assert(
    fc.property(anySlice, (slice) => {
      const { start, end } = visibleKeyRange(slice, slice.q0);
      expect(Math.max(0, end - start)).toBe(listPairs(slice).filter((pair) => queryOf(pair) === slice.q0).length);
    }),
    runs,
  );
});

test("clipping queries keeps exactly the pairs of those rows", () => {
  fc.assert(
    fc.property(anySlice, anyRange, (slice, [from, to]) => {
      const clipped = clipQueries(slice, from, to);
      const wanted = listPairs(slice).filter((pair) => queryOf(pair) >= from && queryOf(pair) < to);
      expect(clipped ? listPairs(clipped) : []).toEqual(wanted);
    }),
    runs,
  );
});

test("clipping keys keeps exactly the pairs of those columns, in at most three slices", () => {
  fc.assert(
    fc.property(anySlice, anyRange, (slice, [from, to]) => {
      const clipped = clipKeys(slice, from, to);
      const wanted = listPairs(slice).filter((pair) => keyOf(pair) >= from && keyOf(pair) < to);
      expect(listPairs(...clipped)).toEqual(wanted);
      expect(clipped.length).toBeLessThanOrEqual(3);
      expect(clipped.every(({ q0, q1, k0, k1 }) => q0 < q1 && k0 < k1)).toBe(true);
    }),
    runs,
  );
});

test("two slices overlap exactly if they share a pair", () => {
  fc.assert(
    fc.property(anySlice, anySlice, (a, b) => {
      const pairs = listPairs(a, b);
      expect(slicesOverlap(a, b)).toBe(new Set(pairs).size < pairs.length);
    }),
    runs,
  );
});

test("an overlap is found in a list exactly if there is one", () => {
  fc.assert(
    fc.property(fc.array(anySlice, { maxLength: 5 }), (slices) => {
      const pairs = listPairs(...slices);
      expect(findOverlap(slices) !== undefined).toBe(new Set(pairs).size < pairs.length);
    }),
    runs,
  );
});

test("visibility of stretches is exact", () => {
  fc.assert(
    fc.property(fc.array(anySlice, { maxLength: 3 }), anyRange, anyRange, (slices, [q0, q1], [k0, k1]) => {
      const inside = (pair: string) => {
        const [q, k] = [queryOf(pair), keyOf(pair)];
        return q >= q0 && q < q1 && k >= k0 && k < k1;
      };
      const queries = [{ start: q0, length: q1 - q0, step: 1 }];
      const keys = [{ start: k0, length: k1 - k0, step: 1 }];
      expect(isVisible(queries, keys, slices)).toBe(listPairs(...slices).some(inside));
    }),
    runs,
  );
});

test("pairs of spans of any step are counted, and are visible where there are any", () => {
  const anySpan = fc
    .tuple(fc.nat(12), fc.nat(6), fc.integer({ min: 1, max: 4 }))
    .map(([start, length, step]) => ({ start, length, step }));
  let hidden = 0;
  fc.assert(
    fc.property(anySlice, anySpan, anySpan, (slice, q, k) => {
      const [rows, columns] = [positions([q]), positions([k])];
      const seen = listPairs(slice).filter((pair) => rows.includes(queryOf(pair)) && columns.includes(keyOf(pair)));
      expect(visiblePairs([q], [k], [slice])).toBe(seen.length);
      expect(isVisible([q], [k], [slice])).toBe(seen.length > 0);
      if (seen.length === 0) hidden++;
    }),
    runs,
  );
  expect(hidden).toBeGreaterThan(runs.numRuns / 10);
});

const square = (at: number, type: Slice["type"]) => ({ q0: at, q1: at + 10, k0: at, k1: at + 10, type });

test.each([
  ["documents", Array.from({ length: 10_000 }, (_, i) => square(10 * i, "causal"))],
  [
    "bands over the same queries",
    Array.from({ length: 10_000 }, (_, i) => ({ ...square(10 * i, "full"), q0: 0, q1: 100_000 })),
  ],
  [
    "bands over the same keys",
    Array.from({ length: 10_000 }, (_, i) => ({ ...square(10 * i, "full"), k0: 0, k1: 100_000 })),
  ],
])("10 000 %s are compared in n log n", (_, slices) => {
  const compared = countComparisons(slices);
  expect(compared).toBeLessThan(50 * slices.length);
});

/** How often a border of a slice is read: a count, not a clock, so that a busy machine does not matter. */
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
