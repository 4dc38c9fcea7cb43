import { isVisible, layoutOf, type Span } from "@mosaic/core";
import fc from "fast-check";
import { expect, test } from "vitest";
import { maskTrials, placements, slicesToMaskMod } from "../src/index.ts";

const lengths = [
  [1, 1],
  [3, 3],
  [12, 12],
  [29, 29],
  [7, 19],
  [19, 7],
  [5, 0],
] as const;

for (const [queries, keys] of lengths) {
  for (const { mask, maskMod } of maskTrials(queries, keys, 1)) {
    test(`${mask.name} on ${queries} × ${keys} allows exactly the pairs of its definition, each in one slice`, () => {
      const slices = mask.slices(queries, keys);
      for (let q = 0; q < queries; q++) {
        for (let k = 0; k < keys; k++) {
          expect(slicesToMaskMod(slices)(q, k), `query ${q}, key ${k}`).toBe(maskMod(q, k));
          expect(slices.filter((slice) => slicesToMaskMod([slice])(q, k)).length).toBeLessThanOrEqual(1);
        }
      }
    });
  }
}

test("isVisible equals a check of all pairs for contiguous spans, and never misses a pair for strided spans", () => {
  const arbitrarySpans = (step: number) =>
    fc.record({ start: fc.nat(20), length: fc.nat(6), step: fc.constant(step) }).map((span): Span[] => [span]);
  const isAnyPairVisible = (q: readonly Span[], k: readonly Span[], maskMod: (q: number, k: number) => boolean) =>
    positions(q).some((query) => positions(k).some((key) => maskMod(query, key)));
  for (const { mask, maskMod } of maskTrials(41, 41, 2)) {
    const slices = mask.slices(41, 41);
    fc.assert(
      fc.property(
        arbitrarySpans(1),
        arbitrarySpans(1),
        (q, k) => isVisible(q, k, slices) === isAnyPairVisible(q, k, maskMod),
      ),
      { numRuns: 200 },
    );
    fc.assert(
      fc.property(
        arbitrarySpans(3),
        arbitrarySpans(4),
        (q, k) => isVisible(q, k, slices) || !isAnyPairVisible(q, k, maskMod),
      ),
      { numRuns: 200 },
    );
  }
});

function positions(spans: readonly Span[]): number[] {
  return spans.flatMap(({ start, length, step }) => Array.from({ length }, (_, i) => start + i * step));
}

test("every placement assigns each position to exactly one shard, for any length and number of shards", () => {
  for (const placement of placements()) {
    fc.assert(
      fc.property(fc.nat(50), fc.integer({ min: 1, max: 9 }), (length, count) => {
        const layout = layoutOf({ mesh: { sp: count }, axes: ["sp"], placement, length });
        const shards = Array.from({ length: count }, (_, sp) => positions(layout.spans({ sp })));
        expect(shards.flat().toSorted((a, b) => a - b)).toEqual(Array.from({ length }, (_, i) => i));
        expect(positions(layout.spans({}))).toEqual(shards.flat());
      }),
    );
  }
});
