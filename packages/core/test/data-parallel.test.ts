import { expect, test } from "vitest";
import {
  dataParallelAxis,
  dataParallelRank,
  dataParallelSize,
  gradientReduceOp,
  isDataParallelAxis,
} from "../src/data-parallel.ts";
import { sequenceAxes } from "../src/placement/shard.ts";
import { referenceWorld } from "./reference/index.ts";

test("the size and the rank of the data-parallel axis are those of the mesh", async () => {
  const ranks = await referenceWorld(6, { mesh: { sp: 2, [dataParallelAxis]: 3 } });
  expect(ranks.map(({ mesh }) => dataParallelSize(mesh))).toEqual([3, 3, 3, 3, 3, 3]);
  expect(ranks.map(({ mesh }) => dataParallelRank(mesh))).toEqual([0, 1, 2, 0, 1, 2]);
});

test("a mesh without a data-parallel axis has one share of the batch", async () => {
  const ranks = await referenceWorld(2, { mesh: { sp: 2 } });
  expect(ranks.map(({ mesh }) => [dataParallelSize(mesh), dataParallelRank(mesh)])).toEqual([
    [1, 0],
    [1, 0],
  ]);
});

test("spSize divides the ranks into the data-parallel axis and sp", async () => {
  const ranks = await referenceWorld(6, { spSize: 2 });
  expect(ranks[0]!.mesh.shape).toEqual({ dp: 3, sp: 2 });
  expect(dataParallelSize(ranks[0]!.mesh)).toBe(3);
});

test("sequences are sharded, and gradients summed, along every other axis", () => {
  const axes = ["node", "dp", "sp"];
  expect(axes.map(isDataParallelAxis)).toEqual([false, true, false]);
  expect(axes.map(gradientReduceOp)).toEqual(["sum", "mean", "sum"]);
  expect(sequenceAxes({ node: 2, dp: 2, sp: 2 })).toEqual(["node", "sp"]);
});
