import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { OptionError, ShapeError } from "../../src/errors.ts";
import * as masks from "../../src/mask/index.ts";
import type { Mask } from "../../src/mask/slice.ts";
import { anySlice, listPairs, pairsWhere } from "./pairs.ts";

const lengths = fc.nat(9);

/** Checks that a mask covers each visible pair of its definition exactly once, and no other pair. */
function checkDefinition(
  createMask: (size: number) => Mask,
  isVisible: (q: number, k: number, sizes: { shift: number; size: number }) => boolean,
) {
  fc.assert(
    fc.property(lengths, lengths, fc.integer({ min: 1, max: 6 }), (queries, keys, size) => {
      fc.pre(size <= keys);
      const expectedPairs = pairsWhere(queries, keys, (q, k) => isVisible(q, k, { shift: keys - queries, size }));
      const slices = createMask(size).slices(queries, keys);
      expect(listPairs(...slices)).toEqual(expectedPairs);
      expect(slices.every(({ q0, q1, k0, k1 }) => q0 < q1 && k0 < k1 && q1 <= queries && k1 <= keys)).toBe(true);
    }),
    { numRuns: 1000 },
  );
}

test.each([masks.full, masks.causal, masks.inverseCausal, masks.bidirectionalCausal])(
  "%o without arguments returns the same frozen object",
  (create) => {
    expect(create()).toBe(create());
    const slices = create().slices(2, 3);
    expect([create(), slices, ...slices].every((each) => Object.isFrozen(each))).toBe(true);
  },
);

describe("slices of a mask cover exactly the pairs of its definition, for any lengths", () => {
  test("full", () => checkDefinition(masks.full, () => true));
  test("causal", () => checkDefinition(masks.causal, (q, k, { shift }) => k <= q + shift));
  test("inverseCausal", () => checkDefinition(masks.inverseCausal, (q, k) => k >= q));
  test("bidirectionalCausal", () =>
    checkDefinition(masks.bidirectionalCausal, (q, k, { shift }) => k >= q && k <= q + shift));
  test("slidingWindow", () =>
    checkDefinition(masks.slidingWindow, (q, k, { shift, size }) => k <= q + shift && k > q + shift - size));
  test("slidingWindow to the left", () =>
    checkDefinition(
      (left) => masks.slidingWindow({ left }),
      (q, k, { shift, size }) => k >= q + shift - size,
    ));
  test("slidingWindow to the right", () =>
    checkDefinition(
      (right) => masks.slidingWindow({ right }),
      (q, k, { shift, size }) => k <= q + shift + size,
    ));
  test("slidingWindow to both sides", () =>
    checkDefinition(
      (left) => masks.slidingWindow({ left, right: 2 }),
      (q, k, { shift, size }) => k >= q + shift - size && k <= q + shift + 2,
    ));
  test("blockCausal", () =>
    checkDefinition(
      masks.blockCausal,
      (q, k, { shift, size }) => q + shift >= 0 && Math.floor(k / size) <= Math.floor((q + shift) / size),
    ));
  test("globalTokens", () => checkDefinition(masks.globalTokens, (_, k, { size }) => k < size));
  test("globalTokens with queries: true", () =>
    checkDefinition(
      (count) => masks.globalTokens(count, { queries: true }),
      (q, k, { shift, size }) => k < size || (q + shift >= 0 && q + shift < size),
    ));
  test("prefix", () => checkDefinition(masks.prefix, (q, k, { shift, size }) => k < size || k <= q + shift));
});

test("globalTokens accepts any positions", () => {
  fc.assert(
    fc.property(fc.array(fc.nat(8), { maxLength: 5 }), lengths, fc.boolean(), (tokens, queries, seeAll) => {
      const mask = masks.globalTokens(tokens, { queries: seeAll });
      const shift = 9 - queries;
      const expectedPairs = pairsWhere(
        queries,
        9,
        (q, k) => tokens.includes(k) || (seeAll && tokens.includes(q + shift)),
      );
      expect(listPairs(...mask.slices(queries, 9))).toEqual(expectedPairs);
    }),
  );
});

const documentLengths = fc.array(fc.nat(5), { maxLength: 6 });

/** Returns the document of each position, and the index within it. */
function listTokenDocuments(sizes: readonly number[]) {
  return sizes.flatMap((size, document) =>
    Array.from({ length: size }, (_, indexInDocument) => ({ document, place: indexInDocument, size })),
  );
}

test.each<[string, masks.DocumentMask, (q: number, k: number, size: number) => boolean]>([
  ["fully", "full", () => true],
  ["causally", "causal", (q, k) => k <= q],
  ["by a window", masks.slidingWindow({ left: 2, right: 1 }), (q, k) => k >= q - 2 && k <= q + 1],
  ["by blocks", masks.blockCausal(2), (q, k) => Math.floor(k / 2) <= Math.floor(q / 2)],
  ["by a mask of masks", masks.and(masks.causal(), masks.slidingWindow(3)), (q, k) => k <= q && k > q - 3],
])("documents attend only within themselves, %s", (_, inner, visible) => {
  fc.assert(
    fc.property(documentLengths, (sizes) => {
      const tokenDocuments = listTokenDocuments(sizes);
      const expectedPairs = pairsWhere(
        tokenDocuments.length,
        tokenDocuments.length,
        (q, k) =>
          tokenDocuments[q]!.document === tokenDocuments[k]!.document &&
          visible(tokenDocuments[q]!.place, tokenDocuments[k]!.place, tokenDocuments[q]!.size),
      );
      expect(listPairs(...masks.documents(sizes, inner).slices(tokenDocuments.length, tokenDocuments.length))).toEqual(
        expectedPairs,
      );
      const documentMask = masks.documents(
        sizes,
        sizes.map(() => inner),
      );
      expect(listPairs(...documentMask.slices(tokenDocuments.length, tokenDocuments.length))).toEqual(expectedPairs);
    }),
  );
});

test("answers attend to the shared question, but not to one another", () => {
  fc.assert(
    fc.property(fc.nat(5), documentLengths, (question, answers) => {
      const owner = listTokenDocuments([question, ...answers]);
      const expectedPairs = pairsWhere(owner.length, owner.length, (q, k) => {
        return k <= q && (owner[k]!.document === 0 || owner[k]!.document === owner[q]!.document);
      });
      const slices = masks.shareQuestion(question, answers).slices(owner.length, owner.length);
      expect(listPairs(...slices)).toEqual(expectedPairs);
      expect(slices.length).toBeLessThanOrEqual(answers.length + 2);
    }),
  );
});

test("fromCuSeqlens pairs each sequence of queries with the sequence of keys of the same index", () => {
  const anyWindowSide = fc.option(fc.nat(4), { nil: undefined });
  const pairsOfLengths = fc.array(fc.tuple(fc.nat(5), fc.nat(5)), { maxLength: 5 });
  fc.assert(
    fc.property(pairsOfLengths, fc.boolean(), anyWindowSide, anyWindowSide, (sizes, isCausal, left, right) => {
      const [queries, keys] = [listTokenDocuments(sizes.map(([q]) => q)), listTokenDocuments(sizes.map(([, k]) => k))];
      const cumulativeLengths = (sideIndex: 0 | 1) =>
        sizes.reduce((sums, each) => [...sums, sums.at(-1)! + each[sideIndex]], [0]);
      const rightBound = isCausal ? 0 : (right ?? Number.POSITIVE_INFINITY);
      const expectedPairs = pairsWhere(queries.length, keys.length, (q, k) => {
        const distance = keys[k]!.place - queries[q]!.place - keys[k]!.size + queries[q]!.size;
        return queries[q]!.document === keys[k]!.document && distance <= rightBound && -distance <= (left ?? 100);
      });
      const mask = masks.fromCuSeqlens(new Int32Array(cumulativeLengths(0)), cumulativeLengths(1), {
        causal: isCausal,
        left,
        right,
      });
      expect(listPairs(...mask.slices(queries.length, keys.length))).toEqual(expectedPairs);
    }),
    { numRuns: 1000 },
  );
  const causalMask = masks.fromCuSeqlens([0, 2, 5], null, { causal: true });
  expect(causalMask.slices(5, 5)).toEqual(masks.documents([2, 3], "causal").slices(5, 5));
});

test("fromSlices accepts disjoint slices within the sequence and rejects others", () => {
  fc.assert(
    fc.property(fc.array(anySlice, { maxLength: 4 }), lengths, lengths, (slices, queries, keys) => {
      const pairs = listPairs(...slices);
      const isValidMask =
        slices.every(({ q1, k1 }) => q1 <= queries && k1 <= keys) && new Set(pairs).size === pairs.length;
      const resolveMask = () => masks.fromSlices(slices).slices(queries, keys);
      if (isValidMask) expect(listPairs(...resolveMask())).toEqual(pairs);
      else expect(resolveMask).toThrow(ShapeError);
    }),
    { numRuns: 1000 },
  );
});

const slice = { q0: 0, q1: 4, k0: 0, k1: 4, type: "full" } as const;

test("invalid arguments of masks are rejected with the reason", () => {
  const overlappingMask = masks.fromSlices([slice, { ...slice, q0: 3, type: "causal" }]);
  expect(() => overlappingMask.slices(4, 4)).toThrow(/overlapping slices queries \[0,4\).*; clip one of them/);
  expect(() => masks.fromSlices([slice]).slices(4, 3)).toThrow(/within 4 queries and 3 keys, received queries \[0,4\)/);
  expect(() => masks.fromSlices([{ ...slice, q0: 5 }])).toThrow(ShapeError);
  expect(() => masks.fromSlices([{ ...slice, type: "striped" as "full" }])).toThrow(ShapeError);
  expect(() => masks.documents([2, 3]).slices(5, 6)).toThrow(/a sequence of length 5.*received 5 queries and 6 keys/);
  expect(() => masks.documents([2, -1])).toThrow(OptionError);
  expect(() => masks.documents([2], "casual" as "causal")).toThrow(/"causal" or "full", received "casual"/);
  expect(() => masks.prefix(7).slices(4, 6)).toThrow(ShapeError);
  expect(() => masks.slidingWindow(0)).toThrow(OptionError);
  expect(() => masks.slidingWindow({})).toThrow(/left, right or both, received neither; use masks.full\(\)/);
  expect(() => masks.slidingWindow({ left: -1 })).toThrow(/slidingWindow: left: expected an integer ≥ 0, received -1/);
  expect(() => masks.slidingWindow({ size: 3 } as never)).toThrow(/options among left, right, received "size"/);
  expect(() => masks.slidingWindow(null as never)).toThrow(/an integer ≥ 1, received null/);
  expect(() => masks.blockCausal(0)).toThrow(/blockCausal: expected an integer ≥ 1, received 0/);
  expect(() => masks.globalTokens(5).slices(4, 4)).toThrow(/globalTokens\(5\): expected at least 5 keys, received 4/);
  expect(() => masks.globalTokens([2, 9]).slices(9, 9)).toThrow(/at least 10 keys, received 9/);
  expect(() => masks.globalTokens([2, -1])).toThrow(/an integer ≥ 0, received -1/);
  expect(() => masks.globalTokens("all" as never)).toThrow(/a number or an array of positions, received "all"/);
  expect(() => masks.globalTokens(2, { queries: 1 as never })).toThrow(/globalTokens: queries: expected a boolean/);
});

test("invalid arguments of packed-sequence masks are rejected with the reason", () => {
  const { documents, fromCuSeqlens, full, shareQuestion } = masks;
  const misspelled = "casual" as "causal";
  expect(() => documents([2, 3], ["full"])).toThrow(/documents: expected 2 masks, one for each document, received 1/);
  expect(() => documents([2, 3], ["full", misspelled])).toThrow(/a Mask, "causal" or "full", received "casual"/);
  expect(() => documents([2, 0.5])).toThrow(/documents: length 1: expected an integer ≥ 0, received 0.5/);
  const outOfRangeMask = { name: "mine", slices: () => [{ ...slice, q1: 1 }] };
  expect(() => documents([3, 4], outOfRangeMask).slices(7, 7)).toThrow(
    /mask mine: expected slices within 3 queries and 3 keys/,
  );
  expect(() => documents([3, 4], masks.prefix(4)).slices(7, 7)).toThrow(/prefix\(4\): expected at least 4 keys/);
  expect(documents([3, 4], full()).slices(7, 7)).toHaveLength(2);
  expect(() => shareQuestion(-1, [])).toThrow(/shareQuestion: question: expected an integer ≥ 0/);
  expect(() => shareQuestion(3, [2, "a" as never])).toThrow(/shareQuestion: answers: length 1: .* received "a"/);
  expect(() => shareQuestion(3, [2, 1]).slices(6, 7)).toThrow(
    /a sequence of length 6, .* received 6 queries and 7 keys/,
  );
  expect(() => fromCuSeqlens([])).toThrow(/cuSeqlensQ: expected ascending integers that start at 0, received \[\]/);
  expect(() => fromCuSeqlens([1, 2])).toThrow(/ascending integers that start at 0/);
  expect(() => fromCuSeqlens([0, 3, 2])).toThrow(/ascending integers that start at 0, received \[0,3,2\]/);
  expect(() => fromCuSeqlens(7 as never)).toThrow(/an array of cumulative lengths, received 7/);
  expect(() => fromCuSeqlens([0, 2], [0, 2, 3])).toThrow(/cuSeqlensK: expected 2 cumulative lengths, .*received 3/);
  expect(() => fromCuSeqlens([0, 2], null, { window: 3 } as never)).toThrow(/options among causal, left, right/);
  expect(() => fromCuSeqlens([0, 2], [0, 4]).slices(2, 5)).toThrow(
    /fromCuSeqlens\(1\): expected 2 queries and 4 keys, .* received 2 queries and 5 keys/,
  );
});

test("fromSlices does not follow later changes to its list", () => {
  const mutableSlices = [{ ...slice, q1: 4 as number }];
  const mask = masks.fromSlices(mutableSlices);
  mutableSlices[0]!.q1 = 100;
  expect(mask.slices(4, 4)).toEqual([slice]);
});

test("documents does not follow later changes to its lengths", () => {
  const lengths = [2, 3];
  const mask = masks.documents(lengths);
  lengths[0] = 3;
  expect(mask.slices(5, 5)).toHaveLength(2);
});
