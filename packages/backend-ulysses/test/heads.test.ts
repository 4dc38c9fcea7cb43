import fc from "fast-check";
import { expect, test } from "vitest";
import { groupedQueryParts, type HeadRange, computeHeadShards } from "../src/head-exchange.ts";

const headCounts = fc
  .record({ numKvHeads: fc.integer({ min: 1, max: 9 }), perKey: fc.integer({ min: 1, max: 7 }) })
  .map(({ numKvHeads, perKey }) => ({ numHeads: numKvHeads * perKey, numKvHeads }));
const sizes = fc.integer({ min: 1, max: 12 });

const listHeads = ({ first, count }: HeadRange, offset = 0): number[] =>
  Array.from({ length: count }, (_, i) => offset + first + i);

test("query heads are assigned once and evenly to ranks, with the KV heads that they read", () => {
  fc.assert(
    fc.property(headCounts, sizes, (problem, size) => {
      const shards = computeHeadShards(problem, size);
      expect(shards.flatMap(({ queries }) => listHeads(queries))).toEqual(
        listHeads({ first: 0, count: problem.numHeads }),
      );
      const lengths = shards.map(({ queries }) => queries.count);
      expect(Math.max(...lengths) - Math.min(...lengths)).toBeLessThanOrEqual(1);
      for (const { queries, keys } of shards) {
        const readKvHeads = listHeads(queries).map((head) =>
          Math.floor((head * problem.numKvHeads) / problem.numHeads),
        );
        expect(listHeads(keys)).toEqual([...new Set(readKvHeads)]);
      }
    }),
  );
});

test("each of at most three parts has equally many query heads per KV head, and maps them correctly", () => {
  fc.assert(
    fc.property(headCounts, sizes, (problem, size) => {
      for (const shard of computeHeadShards(problem, size)) {
        const parts = groupedQueryParts(problem, shard);
        expect(parts.length).toBeLessThanOrEqual(3);
        expect(parts.flatMap(({ queries }) => listHeads(queries))).toEqual(listHeads({ ...shard.queries, first: 0 }));
        expect(parts.flatMap(({ keys }) => listHeads(keys))).toEqual(listHeads({ ...shard.keys, first: 0 }));
        for (const { queries, keys } of parts) {
          for (const [i, head] of listHeads(queries, shard.queries.first).entries()) {
            const key = shard.keys.first + keys.first + Math.floor((i * keys.count) / queries.count);
            expect(key).toBe(Math.floor((head * problem.numKvHeads) / problem.numHeads));
          }
        }
      }
    }),
  );
});

test("whole groups are one part, and a shard that cuts groups at both ends has three parts", () => {
  const evenCounts = { numHeads: 8, numKvHeads: 4 };
  expect(groupedQueryParts(evenCounts, computeHeadShards(evenCounts, 2)[1]!)).toEqual([
    { queries: { first: 0, count: 4 }, keys: { first: 0, count: 2 } },
  ]);
  const shard = { queries: { first: 3, count: 7 }, keys: { first: 0, count: 3 } };
  expect(groupedQueryParts({ numHeads: 12, numKvHeads: 3 }, shard)).toEqual([
    { queries: { first: 0, count: 1 }, keys: { first: 0, count: 1 } },
    { queries: { first: 1, count: 4 }, keys: { first: 1, count: 1 } },
    { queries: { first: 5, count: 2 }, keys: { first: 2, count: 1 } },
  ]);
});
