import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { OptionError, ShapeError } from "../../src/errors.ts";
import * as masks from "../../src/mask/index.ts";
import type { Mask } from "../../src/mask/slice.ts";
import { resolveSlices } from "../../src/mask/verify.ts";
import { listPairs, pairsWhere } from "./pairs.ts";
import { measureProcessorTime } from "../processor-time.ts";

type VisibilityPredicate = (q: number, k: number) => boolean;

const length = fc.nat(10);
const size = fc.integer({ min: 1, max: 6 });

/** Generates a mask and its definition as a predicate on pairs, for sequences of these lengths. */
function anyMask(queries: number, keys: number): fc.Arbitrary<[Mask, VisibilityPredicate]> {
  const shift = keys - queries;
  return fc.oneof(
    fc.constant<[Mask, VisibilityPredicate]>([masks.causal(), (q, k) => k <= q + shift]),
    fc.constant<[Mask, VisibilityPredicate]>([masks.inverseCausal(), (q, k) => k >= q]),
    fc.constant<[Mask, VisibilityPredicate]>([masks.bidirectionalCausal(), (q, k) => k >= q && k <= q + shift]),
    size.map((n): [Mask, VisibilityPredicate] => [
      masks.slidingWindow(n),
      (q, k) => k <= q + shift && k > q + shift - n,
    ]),
    size.map((n): [Mask, VisibilityPredicate] => [
      masks.blockCausal(n),
      (q, k) => q + shift >= 0 && Math.floor(k / n) <= Math.floor((q + shift) / n),
    ]),
    fc
      .array(fc.boolean(), { minLength: queries * keys, maxLength: queries * keys })
      .map((denseBits): [Mask, VisibilityPredicate] => [
        createDenseMask(denseBits, queries, keys),
        (q, k) => denseBits[q * keys + k]!,
      ]),
  );
}

function createDenseMask(bits: readonly boolean[], queries: number, keys: number): Mask {
  // The width of a matrix without rows is unknown.
  if (queries === 0) return masks.fromSlices([]);
  return masks.fromDense(Array.from({ length: queries }, (_, q) => bits.slice(q * keys, (q + 1) * keys)));
}

const anyMasks = fc
  .tuple(length, length)
  .chain(([queries, keys]) =>
    fc.tuple(fc.constant([queries, keys] as const), fc.array(anyMask(queries, keys), { minLength: 1, maxLength: 4 })),
  );

describe("combined masks", () => {
  test.each([
    ["and", masks.and, (visibilities: readonly boolean[]) => visibilities.every(Boolean)],
    ["or", masks.or, (visibilities: readonly boolean[]) => visibilities.some(Boolean)],
  ] as const)("contain exactly the pairs of their definition, each once: %s", (_, combineMasks, combineVisibility) => {
    fc.assert(
      fc.property(anyMasks, ([[queries, keys], trials]) => {
        const expectedPairs = pairsWhere(queries, keys, (q, k) =>
          combineVisibility(trials.map(([, visible]) => visible(q, k))),
        );
        const combinedMask = combineMasks(...trials.map(([mask]) => mask));
        expect(listPairs(...resolveSlices(combinedMask, queries, keys))).toEqual(expectedPairs);
        expect(masks.maskArea(combinedMask, queries, keys)).toBe(expectedPairs.length);
      }),
      { numRuns: 1000 },
    );
  });

  test("support and within or, as in a window with sinks", () => {
    const sinks = masks.or(masks.slidingWindow(3), masks.and(masks.causal(), masks.globalTokens(2)));
    const expectedPairs = pairsWhere(9, 9, (q, k) => k <= q && (k > q - 3 || k < 2));
    expect(listPairs(...sinks.slices(9, 9))).toEqual(expectedPairs);
    expect(sinks.slices(9, 9)).toHaveLength(3);
  });
});

test("combined and dense masks merge adjacent slices", () => {
  const { and, or, causal, full, inverseCausal, slidingWindow, documents } = masks;
  const countSlices = (mask: Mask) => mask.slices(12, 12).length;
  expect(countSlices(or(causal(), slidingWindow(4)))).toBe(1);
  expect(countSlices(or(causal(), inverseCausal()))).toBe(1);
  expect(countSlices(or(documents([5, 7]), full()))).toBe(1);
  expect(countSlices(and(causal(), inverseCausal()))).toBe(1);
  expect(countSlices(and(causal(), documents([5, 7])))).toBe(2);
  expect(countSlices(and(documents([5, 7]), documents([5, 7])))).toBe(2);
  const bandRows = Array.from({ length: 12 }, (_, q) => Array.from({ length: 12 }, (_, k) => k <= q && k > q - 4));
  expect(countSlices(masks.fromDense(bandRows))).toBe(2);
});

test("the name of a combined mask contains the names of its parts", () => {
  expect(masks.and(masks.causal(), masks.slidingWindow({ right: 3 })).name).toBe(
    "and(causal, slidingWindow({ right: 3 }))",
  );
  expect(masks.or(masks.globalTokens([7, 2], { queries: true })).name).toBe(
    "or(globalTokens([7, 2], { queries: true }))",
  );
});

test("combining masks of 1000 documents over a million tokens takes less than a second of processor time", () => {
  const lengths = Array.from({ length: 1000 }, (_, i) => 1 + ((i * 7919) % 2000));
  const total = lengths.reduce((sum, each) => sum + each, 0);
  const mask = masks.or(
    masks.and(masks.documents(lengths), masks.slidingWindow(512)),
    masks.documents(lengths, masks.slidingWindow({ left: 100, right: 100 })),
  );
  expect(measureProcessorTime(() => resolveSlices(mask, total, total))).toBeLessThan(1000);
  expect(resolveSlices(mask, total, total).length).toBeLessThan(5000);
});

test("invalid arguments of and, or, fromDense and maskArea are rejected with the reason", () => {
  expect(() => masks.and()).toThrow(/and: expected at least one mask, received none/);
  expect(() => masks.or("causal" as never)).toThrow(/or: expected a Mask, such as masks.causal\(\), received "causal"/);
  expect(() => masks.and(masks.documents([2, 3])).slices(4, 4)).toThrow(
    /documents\(2, full\): expected a sequence of length 5/,
  );
  expect(() => masks.or({ name: "mine", slices: () => [{ q0: 0 }] as never }).slices(4, 4)).toThrow(ShapeError);
  expect(() => masks.fromDense("yes" as never)).toThrow(/fromDense: expected an array of rows of booleans/);
  expect(() => masks.fromDense([[true], [true, false]])).toThrow(/fromDense: row 1: expected 1 booleans.*received 2/);
  expect(() => masks.fromDense([[true], 3 as never])).toThrow(/fromDense: row 1: expected an array of booleans/);
  expect(() => masks.fromDense([[true, 1 as never]])).toThrow(
    /fromDense: row 0, key 1: expected a boolean, received 1/,
  );
  expect(() => masks.fromDense([[true], undefined as never])).toThrow(OptionError);
  expect(() => masks.fromDense([[true, true]]).slices(2, 2)).toThrow(
    /fromDense\(1×2\): expected 1 queries and 2 keys, received 2 queries and 2 keys/,
  );
  expect(() => masks.maskArea({} as never, 4, 4)).toThrow(/maskArea: expected a Mask/);
  expect(() => masks.maskArea(masks.causal(), -1, 4)).toThrow(OptionError);
});
