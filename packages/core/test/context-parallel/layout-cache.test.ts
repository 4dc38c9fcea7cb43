import { expect, test } from "vitest";
import { LayoutCache } from "../../src/context-parallel/index.ts";
import { layoutOf, masks } from "../../src/index.ts";

const mesh = { node: 2, gpu: 4 };
const tokens = layoutOf({ mesh, axes: ["node", "gpu"], length: 80 });
const call = { at: { node: 0, gpu: 1 }, queries: tokens, keys: tokens, mask: masks.causal().slices(80, 80) };

test("what is known of a place is worked out once, wherever along the given axes it is asked for", () => {
  const kept = new LayoutCache<string>(["gpu"]);
  expect(kept.getOrCreate(call, { node: 1, gpu: 3 }, () => "first")).toBe("first");
  expect(kept.getOrCreate({ ...call, at: { node: 0, gpu: 2 } }, { node: 1, gpu: 0 }, () => "second")).toBe("first");
  expect(kept.getOrCreate({ ...call, at: { node: 1, gpu: 1 } }, { node: 1, gpu: 3 }, () => "second")).toBe("second");
  expect(kept.getOrCreate(call, { node: 0, gpu: 3 }, () => "third")).toBe("third");
});

test("rows that are whole along an axis are not those at a place on it", () => {
  const kept = new LayoutCache<string>(["gpu"]);
  expect(kept.getOrCreate(call, { node: 1, gpu: 3 }, () => "cut")).toBe("cut");
  expect(kept.getOrCreate({ ...call, at: { node: 0 } }, { node: 1, gpu: 3 }, () => "whole")).toBe("whole");
  expect(kept.getOrCreate(call, { gpu: 3 }, () => "all nodes")).toBe("all nodes");
});

test.each([
  ["queries", { queries: layoutOf({ mesh, axes: ["node"], length: 80 }) }],
  ["keys", { keys: layoutOf({ mesh, axes: ["gpu"], length: 80 }) }],
  ["mask", { mask: masks.causal().slices(80, 80) }],
  ["sample masks", { modifiers: { sampleMasks: [masks.full().slices(80, 80)] } }],
])("other %s are another call", (_, other) => {
  const kept = new LayoutCache<string>(["gpu"]);
  const from = { node: 1, gpu: 3 };
  expect(kept.getOrCreate(call, from, () => "one")).toBe("one");
  expect(kept.getOrCreate({ ...call, ...other }, from, () => "other")).toBe("other");
  expect(kept.getOrCreate(call, from, () => "one again")).toBe("one again");
});
