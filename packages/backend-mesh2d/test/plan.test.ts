import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type Plan, planOf } from "../src/plan.ts";
import type { PlanOptions } from "../src/simulate.ts";

/** Costs in chunks of queries' size, with g query heads per key head; compute as long as `ratio` times all transfers. */
function problem(queries: number, keys: number, given: { g: number; ratio: number; backward: boolean }): PlanOptions {
  const { g, ratio, backward } = given;
  const costs = { q: backward ? 2 : 1, kv: 2 / g, out: 1, dkv: backward ? 2 / g : 0 };
  const transfer = (queries - 1) * (costs.q + costs.out) + (keys - 1) * (costs.kv + costs.dkv);
  return { queries, keys, backward, costs: { ...costs, block: ((transfer || 1) * ratio) / (queries * keys) } };
}

/** Tiles and how many query heads share a key head. Smaller tiles are too coarse: no order of a 2 × 2 comes near the bound. */
const tiles = [
  [4, 4, [1, 2, 4]],
  [8, 8, [1, 2, 4, 8]],
  [16, 16, [1, 2, 4, 8]],
  [8, 32, [1, 2, 4, 8]],
  [32, 8, [1, 2, 4, 8]],
  [4, 64, [1, 2, 4, 8]],
] as const;

describe.each(tiles)("%d × %d", (queries, keys, groups) => {
  test.each(groups)("takes at most 1.15 times what no order can beat, %d query heads per key head", (g) => {
    for (const ratio of [0.25, 0.5, 1, 2]) {
      for (const backward of [false, true]) {
        const { makespan, bound } = planOf(problem(queries, keys, { g, ratio, backward }));
        expect(makespan / bound, `compute / transfer ${ratio}, backward ${backward}`).toBeLessThanOrEqual(1.15);
        expect(makespan / bound).toBeGreaterThanOrEqual(1 - 1e-9);
      }
    }
  });
});

/**
 * What a replay takes, by the rules of streams and channels: a batch begins when the one before it is done and so is all
 * compute enqueued before it was posted; a block begins when the one before it is done and its chunks, with all batches
 * before theirs, are there.
 */
function replayed({ steps }: Plan, { costs }: PlanOptions): number {
  let channel = 0;
  let compute = 0;
  const arrival = new Map<string, number>([
    ["q 0", 0],
    ["kv 0", 0],
  ]);
  for (const step of steps) {
    if (step.kind === "block") {
      compute = Math.max(compute, arrival.get(`q ${step.x}`)!, arrival.get(`kv ${step.y}`)!) + costs.block;
    } else {
      channel = Math.max(channel, step.kind === "out" || step.kind === "dkv" ? compute : 0) + costs[step.kind];
      arrival.set(`${step.kind} ${step.offset}`, channel);
    }
  }
  return Math.max(channel, compute);
}

const problems = fc
  .record({
    queries: fc.integer({ min: 1, max: 9 }),
    keys: fc.integer({ min: 1, max: 9 }),
    g: fc.integer({ min: 1, max: 8 }),
    ratio: fc.double({ min: 0.05, max: 20, noNaN: true }),
    backward: fc.boolean(),
  })
  .map(({ queries, keys, ...given }) => problem(queries, keys, given));

test("every block once after its chunks, every sum once after its blocks, chunks in order", () => {
  fc.assert(
    fc.property(problems, (options) => {
      const { queries, keys, backward } = options;
      const here = { q: 1, kv: 1, out: 1, dkv: 1 };
      const done = new Set<number>();
      const isDone = (blocks: number[]) => blocks.every((block) => done.has(block));
      for (const step of planOf(options).steps) {
        if (step.kind === "block") {
          expect(step.x < here.q && step.y < here.kv && !done.has(step.x * keys + step.y)).toBe(true);
          done.add(step.x * keys + step.y);
          continue;
        }
        expect(step.offset).toBe(here[step.kind]++);
        const row = Array.from({ length: keys }, (_, y) => step.offset * keys + y);
        const column = Array.from({ length: queries }, (_, x) => x * keys + step.offset);
        if (step.kind === "out") expect(isDone(row)).toBe(true);
        if (step.kind === "dkv") expect(isDone(column)).toBe(true);
      }
      expect(done.size).toBe(queries * keys);
      expect(here).toEqual({ q: queries, kv: keys, out: queries, dkv: backward ? keys : 1 });
    }),
  );
});

test("a replay takes no longer than was planned", () => {
  fc.assert(
    fc.property(problems, (options) => {
      const plan = planOf(options);
      expect(replayed(plan, options)).toBeLessThanOrEqual(plan.makespan * (1 + 1e-9));
    }),
  );
});

test("three by three, all costs equal: figure 1 in nine steps, the ideal", () => {
  const options = { queries: 3, keys: 3, backward: false, costs: { q: 1, kv: 1, out: 1, dkv: 0, block: 1 } };
  const { steps, makespan } = planOf(options);
  expect(makespan).toBe(9);
  const blocks = steps.flatMap((step) => (step.kind === "block" ? [`${step.x}${step.y}`] : []));
  expect(blocks).toEqual(["00", "10", "11", "21", "12", "22", "20", "01", "02"]);
  const moves = steps.flatMap((step) => (step.kind === "block" ? [] : [`${step.kind} ${step.offset}`]));
  expect(moves).toEqual(["q 1", "kv 1", "q 2", "kv 2", "out 1", "out 2"]);
});

test("backward peels: a row and a column in turn", () => {
  const options = problem(4, 4, { g: 1, ratio: 100, backward: true });
  const sums = planOf(options).steps.flatMap(({ kind }) => (kind === "out" || kind === "dkv" ? [kind] : []));
  expect(sums).toHaveLength(6);
  for (const [i, kind] of sums.entries()) expect(kind).not.toBe(sums[i + 1]);
});
