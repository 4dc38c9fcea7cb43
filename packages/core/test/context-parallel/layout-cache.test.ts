import { expect, test } from "vitest";
import { LayoutCache } from "../../src/context-parallel/index.ts";
import { layoutOf, masks } from "../../src/index.ts";

const mesh = { node: 2, gpu: 4 };
const tokens = layoutOf({ mesh, axes: ["node", "gpu"], length: 80 });
const call = { at: { node: 0, gpu: 1 }, queries: tokens, keys: tokens, mask: masks.causal().slices(80, 80) };

test("getOrCreate shares a value along the axes of the cache, but not along other axes", () => {
  const cache = new LayoutCache<string>(["gpu"]);
  expect(cache.getOrCreate(call, { node: 1, gpu: 3 }, () => "first")).toBe("first");
  expect(cache.getOrCreate({ ...call, at: { node: 0, gpu: 2 } }, { node: 1, gpu: 0 }, () => "second")).toBe("first");
  expect(cache.getOrCreate({ ...call, at: { node: 1, gpu: 1 } }, { node: 1, gpu: 3 }, () => "second")).toBe("second");
  expect(cache.getOrCreate(call, { node: 0, gpu: 3 }, () => "third")).toBe("third");
});

test("getOrCreate distinguishes rows that are not sharded along an axis from a shard on it", () => {
  const cache = new LayoutCache<string>(["gpu"]);
  expect(cache.getOrCreate(call, { node: 1, gpu: 3 }, () => "cut")).toBe("cut");
  expect(cache.getOrCreate({ ...call, at: { node: 0 } }, { node: 1, gpu: 3 }, () => "whole")).toBe("whole");
  expect(cache.getOrCreate(call, { gpu: 3 }, () => "all nodes")).toBe("all nodes");
});

test.each([
  ["queries", { queries: layoutOf({ mesh, axes: ["node"], length: 80 }) }],
  ["keys", { keys: layoutOf({ mesh, axes: ["gpu"], length: 80 }) }],
  ["mask", { mask: masks.causal().slices(80, 80) }],
  ["sample masks", { modifiers: { sampleMasks: [masks.full().slices(80, 80)] } }],
])("getOrCreate computes a new value for different %s", (_, changedCall) => {
  const cache = new LayoutCache<string>(["gpu"]);
  const kvCoordinate = { node: 1, gpu: 3 };
  expect(cache.getOrCreate(call, kvCoordinate, () => "one")).toBe("one");
  expect(cache.getOrCreate({ ...call, ...changedCall }, kvCoordinate, () => "other")).toBe("other");
  expect(cache.getOrCreate(call, kvCoordinate, () => "one again")).toBe("one again");
});
