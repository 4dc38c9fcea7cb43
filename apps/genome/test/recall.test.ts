import { expect, test } from "vitest";
import { topKRecall, countRecalledPairs } from "../src/evaluation.ts";

test("a planted source counts as recalled if it is among the first k chosen chunks", () => {
  const chosenByRow = [
    [3, 1],
    [0, 2],
    [1, 3],
    [2, 0],
  ];
  const sources = new Map([
    [0, 1],
    [1, 3],
    [2, 1],
  ]);
  expect(countRecalledPairs(chosenByRow, sources, 2)).toEqual({ numRecalled: 2, numPairs: 3 });
  expect(countRecalledPairs(chosenByRow, sources, 1)).toEqual({ numRecalled: 1, numPairs: 3 });
});

test("topKRecall compares the mass on chosen chunks with that on the best chunks, excluding the row's own", () => {
  const mass = Float32Array.of(0.5, 0.25, 0.125, 0.125, 0.0625, 0.8125, 0.09375, 0.03125);
  // Row 0: the best two are 1 and 2 (ties to the smaller); row 1: 2 and 0.
  const chosenByRow = [
    [1, 3],
    [2, 0],
  ];
  const recall = topKRecall(mass, chosenByRow, { k: 2, chunks: 4 });
  expect(recall.recall).toBe(3 / 4);
  expect(recall.captured).toBeCloseTo((0.375 + 0.15625) / (0.375 + 0.15625), 6);
  const missedRecall = topKRecall(mass, [[3], [3]], { k: 1, chunks: 4 });
  expect(missedRecall).toEqual({ recall: 0, captured: (0.125 + 0.03125) / (0.25 + 0.09375) });
});
