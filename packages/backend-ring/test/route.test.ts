import fc from "fast-check";
import { expect, test } from "vitest";
import type { Need } from "../src/need.ts";
import { around, ranksOf, supplier, taker } from "../src/route.ts";

/** Any needs among any number of ranks: nothing but the routes themselves is under test. */
const needs = fc.integer({ min: 1, max: 9 }).chain((size) =>
  fc.array(fc.boolean(), { minLength: size * size, maxLength: size * size }).map((wanted): Need => {
    const fetches = (rank: number, source: number) => wanted[rank * size + source]!;
    return { size, fetches, visits: fetches, length: () => 1 };
  }),
);

test("keys come once to everyone who needs them, in time, from somebody who has them", () => {
  fc.assert(
    fc.property(needs, (need) => {
      for (const source of ranksOf(need.size)) {
        // Ranks that have the chunk in a buffer during each step.
        let holders: number[] = [];
        for (let step = 1; step < need.size; step++) {
          const rank = around(source + step, need.size);
          const from = supplier(need, rank, step);
          expect(from !== undefined).toBe(need.fetches(rank, source));
          if (from !== undefined) expect([source, ...holders]).toContain(from);
          holders = from === undefined ? [] : [rank];
        }
      }
    }),
  );
});

test("every contribution reaches home once, and nobody's but those of ranks that see the keys", () => {
  fc.assert(
    fc.property(needs, (need) => {
      for (const home of ranksOf(need.size)) {
        const arrived: number[] = [];
        let carried: number[] = [];
        for (let step = 1; step < need.size; step++) {
          const rank = around(home + step, need.size);
          const to = taker(need, rank, step);
          expect(to !== undefined).toBe(need.fetches(rank, home));
          if (to === undefined) continue;
          carried.push(rank);
          if (to !== home) {
            expect(to).toBe(around(rank + 1, need.size));
            continue;
          }
          arrived.push(...carried);
          carried = [];
        }
        expect(carried).toEqual([]);
        const seers = ranksOf(need.size).filter((rank) => rank !== home && need.fetches(rank, home));
        expect(arrived.toSorted((a, b) => a - b)).toEqual(seers);
      }
    }),
  );
});

test("a full ring passes everything to the right", () => {
  const need: Need = { size: 5, fetches: () => true, visits: () => true, length: () => 1 };
  for (let step = 1; step < 5; step++) {
    for (let rank = 0; rank < 5; rank++) {
      expect(supplier(need, rank, step)).toBe(around(rank - 1, 5));
      expect(taker(need, rank, step)).toBe(around(rank + 1, 5));
    }
  }
});
