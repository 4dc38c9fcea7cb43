import fc from "fast-check";
import { expect, test } from "vitest";
import { findOverlap } from "../../src/mask/overlap.ts";
import { areaOf, bandOf, intersectionOf, unionOf } from "../../src/mask/region.ts";
import { type Slice, sliceArea } from "../../src/mask/slice.ts";
import { anySlice, listPairs, pairsWhere } from "./pairs.ts";

const runs = { numRuns: 3000 };
const anySlices = fc.array(anySlice, { maxLength: 6 });

test("the area of a slice is the number of its pairs", () => {
  fc.assert(
    fc.property(anySlice, (slice) => {
      expect(sliceArea(slice)).toBe(listPairs(slice).length);
    }),
    runs,
  );
});

test("a union has the pairs of all slices, each once, in as many slices as the rows give one after another", () => {
  fc.assert(
    fc.property(anySlices, (slices) => {
      const wanted = [...new Set(listPairs(...slices))];
      const union = unionOf(slices);
      expect(listPairs(...union)).toEqual(wanted);
      expect(findOverlap(union)).toBeUndefined();
      expect(areaOf(union)).toBe(wanted.length);
      expect(union).toHaveLength(countStacks(new Set(wanted)));
    }),
    runs,
  );
});

test("the same region gives the same slices, however it was described", () => {
  fc.assert(
    fc.property(anySlices, fc.infiniteStream(fc.nat()), (slices, numbers) => {
      const union = unionOf(slices);
      const cells = union.flatMap(cellsOf);
      for (const [i] of cells.entries()) {
        const j = numbers.next().value % (i + 1);
        [cells[i], cells[j]] = [cells[j]!, cells[i]!];
      }
      expect(unionOf(cells)).toEqual(union);
      expect(unionOf([...slices, ...union].toReversed())).toEqual(union);
    }),
    { numRuns: 500 },
  );
});

test("an intersection has the pairs that both have, each once", () => {
  fc.assert(
    fc.property(anySlices, anySlices, (some, others) => {
      const [a, b] = [unionOf(some), unionOf(others)];
      const second = new Set(listPairs(...b));
      const wanted = listPairs(...a).filter((pair) => second.has(pair));
      expect(listPairs(...intersectionOf(a, b))).toEqual(wanted);
      expect(listPairs(...intersectionOf(b, a))).toEqual(wanted);
      expect(intersectionOf(a, a).length).toBeLessThanOrEqual(a.length);
    }),
    runs,
  );
});

test("intersections of strips are not cut into more pieces than they were", () => {
  const strips = (k0: number, k1: number): Slice[] =>
    Array.from({ length: 8 }, (_, i) => ({ q0: 2 * i, q1: 2 * i + 1, k0, k1, type: "full" }));
  const comb = [...strips(0, 5), { q0: 0, q1: 16, k0: 5, k1: 6, type: "full" } as const];
  const whole: Slice = { q0: 0, q1: 16, k0: 0, k1: 6, type: "full" };
  expect(unionOf(comb)).toHaveLength(16);
  expect(intersectionOf(comb, [whole])).toHaveLength(9);
});

test("a band has the keys on both sides of each query's own position", () => {
  const anySide = fc.oneof(fc.nat(8), fc.constant(Number.POSITIVE_INFINITY), fc.constant(Number.MAX_SAFE_INTEGER));
  fc.assert(
    fc.property(fc.nat(9), fc.nat(9), anySide, anySide, (queries, keys, left, right) => {
      const own = (q: number) => q + keys - queries;
      const wanted = pairsWhere(queries, keys, (q, k) => k >= own(q) - left && k <= own(q) + right);
      expect(listPairs(...bandOf(queries, keys, { left, right }))).toEqual(wanted);
    }),
    runs,
  );
});

function cellsOf({ q0, k0, ...rest }: Slice): Slice[] {
  return listPairs({ q0, k0, ...rest }).map((pair) => {
    const [q, k] = pair.split(",").map(Number) as [number, number];
    return { q0: q, q1: q + 1, k0: k, k1: k + 1, type: "full" };
  });
}

interface Stack {
  readonly start: number;
  readonly end: number;
  /** How the borders moved with the last row; unknown of a single row. */
  readonly moved?: string;
}

/** Runs of each row, put onto those of the row before while their borders go on as before: row by row. */
function countStacks(pairs: ReadonlySet<string>): number {
  let [count, open] = [0, [] as readonly Stack[]];
  for (let q = 0; q < 20; q++) {
    const next: Stack[] = [];
    for (let start = 0; start < 20; start++) {
      if (!pairs.has(`${q},${start}`)) continue;
      let end = start + 1;
      while (pairs.has(`${q},${end}`)) end++;
      const move = (stack: Stack) => `${start - stack.start} ${end - stack.end}`;
      const before = open.find(
        (stack) => ["0 0", "0 1", "1 0", "1 1"].includes(move(stack)) && (stack.moved ?? move(stack)) === move(stack),
      );
      next.push({ start, end, ...(before && { moved: move(before) }) });
      if (!before) count++;
      start = end;
    }
    open = next;
  }
  return count;
}
