import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { OptionError, ShapeError } from "../../src/errors.ts";
import * as masks from "../../src/mask/masks.ts";
import type { Mask } from "../../src/mask/slice.ts";
import { anySlice, listPairs, pairsWhere } from "./pairs.ts";

const lengths = fc.nat(9);

/** A mask must cover each pair that its definition shows once, and no other. */
function defines(
  make: (size: number) => Mask,
  visible: (q: number, k: number, at: { shift: number; size: number }) => boolean,
) {
  fc.assert(
    fc.property(lengths, lengths, fc.integer({ min: 1, max: 6 }), (queries, keys, size) => {
      fc.pre(size <= keys);
      const wanted = pairsWhere(queries, keys, (q, k) => visible(q, k, { shift: keys - queries, size }));
      const slices = make(size).slices(queries, keys);
      expect(listPairs(...slices)).toEqual(wanted);
      expect(slices.every(({ q0, q1, k0, k1 }) => q0 < q1 && k0 < k1 && q1 <= queries && k1 <= keys)).toBe(true);
    }),
    { numRuns: 1000 },
  );
}

describe("each mask shows what its definition states, for any lengths", () => {
  test("full", () => defines(masks.full, () => true));
  test("causal", () => defines(masks.causal, (q, k, { shift }) => k <= q + shift));
  test("inverseCausal", () => defines(masks.inverseCausal, (q, k) => k >= q));
  test("bidirectionalCausal", () => defines(masks.bidirectionalCausal, (q, k, { shift }) => k >= q && k <= q + shift));
  test("slidingWindow", () =>
    defines(masks.slidingWindow, (q, k, { shift, size }) => k <= q + shift && k > q + shift - size));
  test("prefix", () => defines(masks.prefix, (q, k, { shift, size }) => k < size || k <= q + shift));
});

test("documents see only themselves", () => {
  fc.assert(
    fc.property(fc.array(fc.nat(4), { maxLength: 6 }), fc.boolean(), (sizes, isCausal) => {
      const owner = sizes.flatMap((size, document) => new Array<number>(size).fill(document));
      const slices = masks.documents(sizes, isCausal ? "causal" : "full").slices(owner.length, owner.length);
      const wanted = pairsWhere(owner.length, owner.length, (q, k) => owner[q] === owner[k] && (!isCausal || k <= q));
      expect(listPairs(...slices)).toEqual(wanted);
    }),
  );
});

test("a list of slices is taken if it lies within the sequence and covers nothing twice", () => {
  fc.assert(
    fc.property(fc.array(anySlice, { maxLength: 4 }), lengths, lengths, (slices, queries, keys) => {
      const pairs = listPairs(...slices);
      const fits = slices.every(({ q1, k1 }) => q1 <= queries && k1 <= keys) && new Set(pairs).size === pairs.length;
      const take = () => masks.fromSlices(slices).slices(queries, keys);
      if (fits) expect(listPairs(...take())).toEqual(pairs);
      else expect(take).toThrow(ShapeError);
    }),
    { numRuns: 1000 },
  );
});

const slice = { q0: 0, q1: 4, k0: 0, k1: 4, type: "full" } as const;

test("refusals state what is wrong", () => {
  const twice = masks.fromSlices([slice, { ...slice, q0: 3, type: "causal" }]);
  expect(() => twice.slices(4, 4)).toThrow(/overlapping slices queries \[0,4\).*; clip one of them/);
  expect(() => masks.fromSlices([slice]).slices(4, 3)).toThrow(/within 4 queries and 3 keys, received queries \[0,4\)/);
  expect(() => masks.fromSlices([{ ...slice, q0: 5 }])).toThrow(ShapeError);
  expect(() => masks.fromSlices([{ ...slice, type: "striped" as "full" }])).toThrow(ShapeError);
  expect(() => masks.documents([2, 3]).slices(5, 6)).toThrow(/a sequence of 5.*received 5 queries and 6 keys/);
  expect(() => masks.documents([2, -1])).toThrow(OptionError);
  expect(() => masks.documents([2], "casual" as "causal")).toThrow(/"causal" or "full", received "casual"/);
  expect(() => masks.prefix(7).slices(4, 6)).toThrow(ShapeError);
  expect(() => masks.slidingWindow(0)).toThrow(OptionError);
});

test("a mask taken from a list does not follow later changes to it", () => {
  const list = [{ ...slice, q1: 4 as number }];
  const mask = masks.fromSlices(list);
  list[0]!.q1 = 100;
  expect(mask.slices(4, 4)).toEqual([slice]);
});

test("a mask stays what it was made of", () => {
  const lengths = [2, 3];
  const mask = masks.documents(lengths);
  lengths[0] = 3;
  expect(mask.slices(5, 5)).toHaveLength(2);
});
