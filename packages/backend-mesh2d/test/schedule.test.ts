import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { greedySchedule, type Schedule } from "../src/schedule.ts";
import { type ChunkTransfer, type ScheduleOptions, batchTime } from "../src/timeline.ts";

interface ProblemSpec {
  readonly g: number;
  readonly ratio: number;
  readonly backward: boolean;
  readonly channels?: 1 | 2;
  /** Time of a byte along a row relative to that along a column. */
  readonly row?: number;
}

/**
 * Creates a problem with g query heads per KV head and costs in chunks of queries. Compute takes `ratio` times all
 * transfers.
 */
function createProblem(queries: number, keys: number, spec: ProblemSpec): ScheduleOptions {
  const { g, ratio, backward, channels = 1, row = 1 } = spec;
  const costs = { q: row * (backward ? 2 : 1), kv: 2 / g, out: row, dkv: backward ? 2 / g : 0 };
  const transfer = (queries - 1) * (costs.q + costs.out) + (keys - 1) * (costs.kv + costs.dkv);
  const block = ((transfer || 1) * ratio) / (queries * keys);
  return { queries, keys, backward, channels, costs: { ...costs, block } };
}

/** Returns the ratio of the makespan to the lower bound of any order. */
function computeExcess({ makespan, transferTime, computeTime }: Schedule): number {
  return makespan / Math.max(transferTime, computeTime);
}

/**
 * Tiles, and numbers of query heads per KV head. Smaller tiles are too coarse: no order of 2 × 2 comes close to the
 * bound.
 */
const tiles = [
  [4, 4, [1, 2, 4, 8]],
  [8, 8, [1, 2, 4, 8]],
  [16, 16, [1, 2, 4, 8]],
  [8, 32, [1, 2, 4, 8]],
  [32, 8, [1, 2, 4, 8]],
  [4, 64, [1, 2, 4, 8]],
] as const;
const ratios = [0.25, 0.5, 1, 2] as const;

describe.each(tiles)("%d × %d", (queries, keys, groups) => {
  test.each(groups)("takes at most 1.15 times the lower bound of any order, %d query heads per KV head", (g) => {
    for (const ratio of ratios) {
      for (const backward of [false, true]) {
        const schedule = greedySchedule(createProblem(queries, keys, { g, ratio, backward }));
        expect(computeExcess(schedule), `compute / transfer ${ratio}, backward ${backward}`).toBeLessThanOrEqual(1.15);
        expect(computeExcess(schedule)).toBeGreaterThanOrEqual(1 - 1e-9);
      }
    }
  });

  test.each(groups)("takes no longer on two channels than on one, %d query heads per KV head", (g) => {
    for (const ratio of ratios) {
      for (const backward of [false, true]) {
        const [oneChannel, twoChannels] = ([1, 2] as const).map((channels) =>
          greedySchedule(createProblem(queries, keys, { g, ratio, backward, channels })),
        );
        expect(twoChannels!.makespan).toBeLessThanOrEqual(oneChannel!.makespan * (1 + 1e-9));
        expect(computeExcess(twoChannels!)).toBeGreaterThanOrEqual(1 - 1e-9);
      }
    }
  });
});

test.each([
  // Results of two independent channels relative to the bound of one channel: forward, then backward.
  [0.25, 0.75, 0.57],
  [0.5, 0.75, 0.59],
  [1, 1.04, 1.05],
  [2, 1.01, 1.01],
])(
  "16 × 16 on two channels, compute / transfer %d, takes at most %d and %d times the bound of one channel",
  (ratio, forward, backward) => {
    for (const [isBackward, maxRatio] of [
      [false, forward],
      [true, backward],
    ] as const) {
      const spec = { g: 1, ratio, backward: isBackward };
      const { transferTime, computeTime } = greedySchedule(createProblem(16, 16, spec));
      const { makespan } = greedySchedule(createProblem(16, 16, { ...spec, channels: 2 }));
      expect(makespan / Math.max(transferTime, computeTime)).toBeLessThanOrEqual(maxRatio + 0.01);
    }
  },
);

test("two channels hide the faster of row and column transfers if their links differ in speed", () => {
  for (const row of [0.1, 0.3, 3, 10]) {
    for (const [queries, keys] of [
      [8, 8],
      [8, 32],
      [32, 8],
    ] as const) {
      const spec = { g: 1, ratio: 0.25, backward: true, row };
      const twoChannels = greedySchedule(createProblem(queries, keys, { ...spec, channels: 2 }));
      expect(computeExcess(twoChannels), `${queries} × ${keys}, ${row}`).toBeLessThanOrEqual(1.25);
      expect(twoChannels.makespan).toBeLessThan(greedySchedule(createProblem(queries, keys, spec)).makespan);
    }
  }
});

/**
 * Computes the time of a schedule by the rules of streams and channels. A batch starts when the previous batch and all
 * compute enqueued before it have completed. A block starts when the previous block has completed and its chunks have
 * been received, together with all earlier batches.
 */
function replay({ steps }: Schedule, options: ScheduleOptions): number {
  let channelTime = 0;
  let computeTime = 0;
  const arrivalTimes = new Map<string, number>([
    ["q 0", 0],
    ["kv 0", 0],
  ]);
  for (const step of steps) {
    if (step.kind === "block") {
      computeTime =
        Math.max(computeTime, arrivalTimes.get(`q ${step.x}`)!, arrivalTimes.get(`kv ${step.y}`)!) +
        options.costs.block;
      continue;
    }
    const sendsSums = step.chunkTransfers.some(({ kind }) => kind === "out" || kind === "dkv");
    channelTime = Math.max(channelTime, sendsSums ? computeTime : 0) + batchTime(step.chunkTransfers, options);
    for (const { kind, offset } of step.chunkTransfers) arrivalTimes.set(`${kind} ${offset}`, channelTime);
  }
  return Math.max(channelTime, computeTime);
}

const problems = fc
  .record({
    queries: fc.integer({ min: 1, max: 9 }),
    keys: fc.integer({ min: 1, max: 9 }),
    g: fc.integer({ min: 1, max: 8 }),
    ratio: fc.double({ min: 0.05, max: 20, noNaN: true }),
    row: fc.constantFrom(0.1, 1, 4),
    channels: fc.constantFrom(1, 2),
    backward: fc.boolean(),
  })
  .map(({ queries, keys, ...given }) => createProblem(queries, keys, given));

test("schedules run each block once after its chunks and send each sum once after its blocks, in order", () => {
  fc.assert(
    fc.property(problems, (options) => {
      const { queries, keys, backward, channels } = options;
      const nextOffsets = { q: 1, kv: 1, out: 1, dkv: 1 };
      const completedBlocks = new Set<number>();
      const areCompleted = (blocks: number[]) => blocks.every((block) => completedBlocks.has(block));
      const checkMove = ({ kind, offset }: ChunkTransfer) => {
        expect(offset).toBe(nextOffsets[kind]++);
        const row = Array.from({ length: keys }, (_, y) => offset * keys + y);
        const column = Array.from({ length: queries }, (_, x) => x * keys + offset);
        if (kind === "out") expect(areCompleted(row)).toBe(true);
        if (kind === "dkv") expect(areCompleted(column)).toBe(true);
      };
      for (const step of greedySchedule(options).steps) {
        if (step.kind === "batch") {
          expect(step.chunkTransfers.length).toBeGreaterThan(0);
          if (channels === 1) expect(step.chunkTransfers.length).toBe(1);
          step.chunkTransfers.forEach(checkMove);
          continue;
        }
        expect(step.x < nextOffsets.q && step.y < nextOffsets.kv && !completedBlocks.has(step.x * keys + step.y)).toBe(
          true,
        );
        completedBlocks.add(step.x * keys + step.y);
      }
      expect(completedBlocks.size).toBe(queries * keys);
      expect(nextOffsets).toEqual({ q: queries, kv: keys, out: queries, dkv: backward ? keys : 1 });
    }),
  );
});

test("replaying a schedule takes no longer than its makespan", () => {
  fc.assert(
    fc.property(problems, (options) => {
      const schedule = greedySchedule(options);
      expect(replay(schedule, options)).toBeLessThanOrEqual(schedule.makespan * (1 + 1e-9));
    }),
  );
});

const listMoves = ({ steps }: Schedule): string[] =>
  steps.flatMap((step) =>
    step.kind === "block" ? [] : [step.chunkTransfers.map(({ kind, offset }) => `${kind} ${offset}`).join(" + ")],
  );

test("a 3 × 3 tile with equal costs has the order of figure 1, in the ideal time of nine steps", () => {
  const costs = { q: 1, kv: 1, out: 1, dkv: 0, block: 1 };
  const schedule = greedySchedule({ queries: 3, keys: 3, backward: false, channels: 1, costs });
  expect(schedule.makespan).toBe(9);
  const blocks = schedule.steps.flatMap((step) => (step.kind === "block" ? [`${step.x}${step.y}`] : []));
  expect(blocks).toEqual(["00", "10", "11", "21", "12", "22", "20", "01", "02"]);
  expect(listMoves(schedule)).toEqual(["q 1", "kv 1", "q 2", "kv 2", "out 1", "out 2"]);
});

test("two channels transfer a row and a column chunk together, or several fast row chunks with a slow column chunk", () => {
  const costs = { q: 1, kv: 1, out: 1, dkv: 0, block: 0.1 };
  const tile = { queries: 3, keys: 3, backward: false, channels: 2 } as const;
  expect(listMoves(greedySchedule({ ...tile, costs }))).toEqual(["q 1 + kv 1", "q 2 + kv 2", "out 1", "out 2"]);
  const slowColumnSchedule = greedySchedule({ ...tile, queries: 4, keys: 2, costs: { ...costs, kv: 3 } });
  expect(listMoves(slowColumnSchedule)).toEqual(["q 1 + q 2 + q 3 + kv 1", "out 1", "out 2", "out 3"]);
});

test("backward sends sums of rows and columns alternately", () => {
  const sumMoves = listMoves(greedySchedule(createProblem(4, 4, { g: 1, ratio: 100, backward: true }))).filter((move) =>
    /out|dkv/.test(move),
  );
  expect(sumMoves).toHaveLength(6);
  for (const [i, move] of sumMoves.entries()) expect(move.slice(0, 3)).not.toBe(sumMoves[i + 1]?.slice(0, 3));
});
