import fc from "fast-check";
import { expect, test } from "vitest";
import { groupedQueryParts, type HeadRange, headShards } from "../src/head-exchange.ts";

const counts = fc
  .record({ numKvHeads: fc.integer({ min: 1, max: 9 }), perKey: fc.integer({ min: 1, max: 7 }) })
  .map(({ numKvHeads, perKey }) => ({ numHeads: numKvHeads * perKey, numKvHeads }));
const sizes = fc.integer({ min: 1, max: 12 });

const listed = ({ first, count }: HeadRange, from = 0): number[] =>
  Array.from({ length: count }, (_, i) => from + first + i);

test("every query head has one rank, no rank has two more than another, and the KV heads are those that are read", () => {
  fc.assert(
    fc.property(counts, sizes, (given, size) => {
      const shares = headShards(given, size);
      expect(shares.flatMap(({ queries }) => listed(queries))).toEqual(listed({ first: 0, count: given.numHeads }));
      const lengths = shares.map(({ queries }) => queries.count);
      expect(Math.max(...lengths) - Math.min(...lengths)).toBeLessThanOrEqual(1);
      for (const { queries, keys } of shares) {
        const read = listed(queries).map((head) => Math.floor((head * given.numKvHeads) / given.numHeads));
        expect(listed(keys)).toEqual([...new Set(read)]);
      }
    }),
  );
});

test("in every part KV heads have equally many query heads, the right ones, and parts are as few as they can be", () => {
  fc.assert(
    fc.property(counts, sizes, (given, size) => {
      for (const share of headShards(given, size)) {
        const parts = groupedQueryParts(given, share);
        expect(parts.length).toBeLessThanOrEqual(3);
        expect(parts.flatMap(({ queries }) => listed(queries))).toEqual(listed({ ...share.queries, first: 0 }));
        expect(parts.flatMap(({ keys }) => listed(keys))).toEqual(listed({ ...share.keys, first: 0 }));
        for (const { queries, keys } of parts) {
          for (const [i, head] of listed(queries, share.queries.first).entries()) {
            const key = share.keys.first + keys.first + Math.floor((i * keys.count) / queries.count);
            expect(key).toBe(Math.floor((head * given.numKvHeads) / given.numHeads));
          }
        }
      }
    }),
  );
});

test("heads that divide are one part; a share that cuts a group on both sides is three", () => {
  const even = { numHeads: 8, numKvHeads: 4 };
  expect(groupedQueryParts(even, headShards(even, 2)[1]!)).toEqual([
    { queries: { first: 0, count: 4 }, keys: { first: 0, count: 2 } },
  ]);
  const share = { queries: { first: 3, count: 7 }, keys: { first: 0, count: 3 } };
  expect(groupedQueryParts({ numHeads: 12, numKvHeads: 3 }, share)).toEqual([
    { queries: { first: 0, count: 1 }, keys: { first: 0, count: 1 } },
    { queries: { first: 1, count: 4 }, keys: { first: 1, count: 1 } },
    { queries: { first: 5, count: 2 }, keys: { first: 2, count: 1 } },
  ]);
});
