import { expect, test, vi } from "vitest";
import { groupCastHash, rankGroupCast } from "../../src/collectives/cast-plan.ts";
import type { GroupCastPlan, RowRange } from "../../src/collectives/process-group.ts";
import type { Tensor } from "../../src/tensor.ts";

const createShapedTensor = (...shape: number[]): Tensor => ({ shape, dtype: "float32" }) as unknown as Tensor;

/** Creates a plan of 3 ranks with one range, by default from rank 0 to 1. */
function createSingleRangePlan(range: RowRange, sender = 0, receiver = 1): GroupCastPlan {
  return {
    size: 3,
    ranges: (planSender, planReceiver) => (planSender === sender && planReceiver === receiver ? [range] : []),
  };
}

test("groupCastHash depends on ranges, operation, shapes and dtypes, but not on the number of rows", () => {
  const range = { start: 2, length: 3 };
  const hash = groupCastHash(createSingleRangePlan(range), 0, [createShapedTensor(2, 9, 4)]);
  expect(groupCastHash(createSingleRangePlan({ ...range }), 0, [createShapedTensor(2, 30, 4)])).toBe(hash);
  expect(Number.isSafeInteger(hash)).toBe(true);
  const changedHashes = [
    groupCastHash(createSingleRangePlan({ start: 3, length: 3 }), 0, [createShapedTensor(2, 9, 4)]),
    groupCastHash(createSingleRangePlan({ start: 2, length: 4 }), 0, [createShapedTensor(2, 9, 4)]),
    groupCastHash(createSingleRangePlan(range, 1, 0), 0, [createShapedTensor(2, 9, 4)]),
    groupCastHash(createSingleRangePlan(range, 0, 2), 0, [createShapedTensor(2, 9, 4)]),
    groupCastHash(createSingleRangePlan(range), 1, [createShapedTensor(2, 9, 4)]),
    groupCastHash(createSingleRangePlan(range), 0, [createShapedTensor(2, 9, 5)]),
    groupCastHash(createSingleRangePlan(range), 0, [createShapedTensor(9, 4)]),
    groupCastHash(createSingleRangePlan(range), 0, [createShapedTensor(2, 9, 4), createShapedTensor(2, 9, 4)]),
    // "float16" has as many characters as "float32".
    groupCastHash(createSingleRangePlan(range), 0, [{ ...createShapedTensor(2, 9, 4), dtype: "float16" } as Tensor]),
    groupCastHash(createSingleRangePlan(range), 0, [{ ...createShapedTensor(2, 9, 4), dtype: "bfloat16" } as Tensor]),
  ];
  expect(new Set([hash, ...changedHashes]).size).toBe(changedHashes.length + 1);
});

test("hashes of ten thousand plans differ", () => {
  const hashes = new Set<number>();
  for (let i = 0; i < 10_000; i++) {
    hashes.add(
      groupCastHash(createSingleRangePlan({ start: i % 100, length: 1 + Math.floor(i / 100) }), 0, [
        createShapedTensor(9, 4),
      ]),
    );
  }
  expect(hashes.size).toBe(10_000);
});

test("a plan object is verified once per rank and hashed once", () => {
  const ranges = vi.fn<GroupCastPlan["ranges"]>(createSingleRangePlan({ start: 0, length: 1 }).ranges);
  const plan = { size: 3, ranges };
  const firstCast = rankGroupCast("test", plan, { rank: 0, size: 3 });
  groupCastHash(plan, 0, [createShapedTensor(9, 4)]);
  const calls = ranges.mock.calls.length;
  expect(rankGroupCast("test", plan, { rank: 0, size: 3 })).toBe(firstCast);
  groupCastHash(plan, 0, [createShapedTensor(9, 5)]);
  expect(ranges.mock.calls.length).toBe(calls);
  // For another rank of this process, the ranges of that rank are verified.
  expect(rankGroupCast("test", plan, { rank: 1, size: 3 }).receivedRows).toBe(1);
});

test("a rank's input has at least the rows that it sends, and its output those that it receives", () => {
  const plan: GroupCastPlan = {
    size: 3,
    ranges(sender, receiver) {
      if (sender === 0 && receiver === 1) return [{ start: 2, length: 3 }];
      return sender === 0 && receiver === 2
        ? [
            { start: 0, length: 1 },
            { start: 1, length: 1 },
          ]
        : [];
    },
  };
  const casts = [0, 1, 2].map((rank) => rankGroupCast("test", plan, { rank, size: 3 }));
  expect(casts.map(({ minInputRows }) => minInputRows)).toEqual([5, 0, 0]);
  expect(casts.map(({ receivedRows }) => receivedRows)).toEqual([0, 3, 2]);
});

test.each<[unknown, string]>([
  [undefined, "test: expected a plan { size, ranges(sender, receiver) }"],
  [{ size: 3 }, "test: expected a plan { size, ranges(sender, receiver) }"],
  [{ size: 2, ranges: () => [] }, "test: expected a plan for 3 ranks, received 2"],
  [
    createSingleRangePlan({ start: 0.5, length: 1 }),
    "test: plan.ranges(0, 1): expected ranges { start, length } of integers, start ≥ 0, length ≥ 1",
  ],
  [
    createSingleRangePlan({ start: -1, length: 1 }),
    "test: plan.ranges(0, 1): expected ranges { start, length } of integers, start ≥ 0, length ≥ 1",
  ],
  [
    createSingleRangePlan({ start: 1, length: 0 }),
    "test: plan.ranges(0, 1): expected ranges { start, length } of integers, start ≥ 0, length ≥ 1",
  ],
  [{ size: 3, ranges: () => undefined }, "test: plan.ranges(0, 0): expected an array of ranges"],
  [
    { size: 3, ranges: (sender: number, receiver: number) => (sender === receiver ? [] : [null]) },
    "test: plan.ranges(0, 1): expected ranges",
  ],
])("the plan %j is rejected", (plan, message) => {
  expect(() => rankGroupCast("test", plan as GroupCastPlan, { rank: 0, size: 3 })).toThrow(message);
});
