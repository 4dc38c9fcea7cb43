import { expect, test } from "vitest";
import {
  dataParallelAxes,
  dataParallelAxis,
  dataParallelRank,
  dataParallelSize,
  gradientReduceOp,
  isDataParallelAxis,
} from "../src/data-parallel.ts";
import { OptionError } from "../src/errors.ts";
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

test("several data-parallel axes divide the batch row-major, in the order of the mesh", async () => {
  const ranks = await referenceWorld(12, { mesh: { dp_replicate: 2, sp: 2, dp_shard: 3 } });
  expect(new Set(ranks.map(({ mesh }) => dataParallelSize(mesh)))).toEqual(new Set([6]));
  expect(ranks.map(({ mesh }) => dataParallelRank(mesh))).toEqual([0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
  expect(dataParallelAxes(ranks[0]!.mesh.shape)).toEqual(["dp_replicate", "dp_shard"]);
  const swapped = await referenceWorld(6, { mesh: { dp_shard: 3, dp_replicate: 2 } });
  expect(swapped.map(({ mesh }) => dataParallelRank(mesh))).toEqual([0, 1, 2, 3, 4, 5]);
});

test("sequences are sharded, and gradients summed, along every other axis", () => {
  const axes = ["node", "dp", "sp", "dp_replicate", "dp_shard", "dpx", "DP_shard", "adp_"];
  expect(axes.filter(isDataParallelAxis)).toEqual(["dp", "dp_replicate", "dp_shard"]);
  expect(axes.filter((axis) => gradientReduceOp(axis) === "mean")).toEqual(["dp", "dp_replicate", "dp_shard"]);
  expect(sequenceAxes({ node: 2, dp: 2, sp: 2 })).toEqual(["node", "sp"]);
  expect(sequenceAxes({ dp_replicate: 2, node: 2, dp_shard: 2, sp: 2 })).toEqual(["node", "sp"]);
});

test("a value that is not a mesh is rejected", () => {
  expect(() => dataParallelAxes(null as never)).toThrow(/dataParallelAxes: expected axis lengths by name/);
  const mesh = { shape: { dp: 2 }, coordinate: { dp: 1 }, axes: ["dp"] };
  expect(() => dataParallelAxes(mesh as never)).toThrow(/or ctx\.mesh\.shape, received/);
  expect(() => dataParallelSize({} as never)).toThrow(OptionError);
  expect(() => dataParallelRank({ shape: mesh.shape } as never)).toThrow(/dataParallelRank: expected a DeviceMesh/);
  expect(() => dataParallelRank({ coordinate: { dp: 1 } } as never)).toThrow(/dataParallelRank: expected a DeviceMesh/);
});
