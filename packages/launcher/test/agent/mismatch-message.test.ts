import { expect, test } from "vitest";
import { mismatchMessage } from "../../src/agent/calls.ts";

const createLog = (...calls: readonly (readonly [index: number, history: number, description: string])[]) =>
  calls.map(([index, history, description]) => ({ index: BigInt(index), history: BigInt(history), description }));

const rule = "; all ranks of a group must call the same collectives in the same order, with the same shapes";

test("the mismatch message names the first call whose history differs, with the lower rank first", () => {
  const [a, b] = [createLog([1, 7, "x"], [2, 8, "y"], [3, 9, "z"]), createLog([1, 7, "x"], [2, 18, "v"], [3, 19, "w"])];
  expect(mismatchMessage(4, a, 2, b)).toBe(`rank 2 is at v, rank 4 at y${rule}`);
});

test("the mismatch message prefers a call with different descriptions if an earlier difference is no longer in the log", () => {
  const [a, b] = [createLog([8, 1, "same"], [9, 2, "mask full"]), createLog([8, 11, "same"], [9, 12, "mask causal"])];
  expect(mismatchMessage(0, a, 1, b)).toBe(`rank 0 is at mask full, rank 1 at mask causal${rule}`);
  expect(mismatchMessage(0, a.slice(0, 1), 1, b)).toBe(`rank 0 is at same, rank 1 at same${rule}`);
});

test("the mismatch message covers logs without a common call", () => {
  expect(mismatchMessage(0, createLog([1, 1, "x"]), 1, createLog([9, 2, "y"]))).toBe(
    `ranks 0 and 1 diverged at a collective that is no longer in the call log${rule}`,
  );
});
