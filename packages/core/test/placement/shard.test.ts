import { describe, expect, test } from "vitest";
import { fromArray } from "../../src/creation.ts";
import { ShapeError } from "../../src/errors.ts";
import { sum } from "../../src/ops/reduction.ts";
import { contiguous, type Placement, striped, zigzag } from "../../src/placement/placement.ts";
import { sequenceAxes, shard, unshard } from "../../src/placement/shard.ts";
import { referenceWorld } from "../reference/index.ts";

const count = (size: number) => Array.from({ length: size }, (_, i) => i);

const placements: readonly [string, Placement][] = [
  ["contiguous", contiguous()],
  ["zigzag", zigzag()],
  ["striped", striped()],
];

describe.each(placements)("unshard is the inverse of shard, %s", (_, placement) => {
  test.each([
    [1, 5],
    [2, 7],
    [3, 12],
    [4, 2],
    [5, 0],
  ])("restores the tensor on %i ranks with %i rows, along every axis", async (size, length) => {
    const ranks = await referenceWorld(size);
    for (const axis of [0, 1, -1]) {
      const shape = [2, 3, 2].with(axis, length);
      const data = count(shape.reduce((a, b) => a * b));
      const results = ranks.map((ctx) => {
        using fullTensor = fromArray(ctx, data, shape);
        using localShard = shard(ctx, fullTensor, axis, { placement });
        return unshard(ctx, localShard, axis, { placement, length });
      });
      for (const result of await Promise.all(results.map((each) => each.read()))) expect([...result]).toEqual(data);
      expect(results[0]!.shape).toEqual(shape);
    }
  });
});

test("shard and unshard support several mesh axes and none", async () => {
  const ranks = await referenceWorld(6, { mesh: { dp: 1, node: 2, gpu: 3 } });
  expect(sequenceAxes(ranks[0]!.mesh.shape)).toEqual(["node", "gpu"]);
  for (const axes of [["node", "gpu"], ["gpu", "node"], ["gpu"], []]) {
    const options = { placement: "zigzag", axes, length: 11 } as const;
    const results = ranks.map((ctx) => {
      const fullTensor = fromArray(ctx, count(22), [2, 11]);
      return unshard(ctx, shard(ctx, fullTensor, 1, options), 1, options);
    });
    for (const result of await Promise.all(results.map((each) => each.read()))) expect([...result]).toEqual(count(22));
  }
});

test("a shard holds only its rows and does not retain the whole tensor", async () => {
  const [ctx] = (await referenceWorld(4)).slice(1);
  const fullTensor = fromArray(ctx!, count(20), [10, 2]);
  const localShard = shard(ctx!, fullTensor, 0);
  fullTensor.dispose();
  expect([...(await localShard.read())]).toEqual([6, 7, 8, 9, 10, 11]);
  expect(ctx!.device.memory().allocated).toBe(24);
});

test("gradients of a shard flow to its rows of the whole tensor", async () => {
  const [ctx] = await referenceWorld(2);
  const fullTensor = fromArray(ctx!, count(5), [5]);
  fullTensor.requiresGrad = true;
  using localShard = shard(ctx!, fullTensor, 0, { placement: "striped" });
  using total = sum(localShard);
  total.backward();
  expect([...(await fullTensor.grad!.read())]).toEqual([1, 0, 1, 0, 1]);
});

test("a shard of one rank is contiguous, and gradients flow to the whole tensor", async () => {
  const [ctx] = await referenceWorld(1);
  using fullTensor = fromArray(ctx!, count(6), [2, 3]);
  fullTensor.requiresGrad = true;
  using localShard = shard(ctx!, fullTensor.transpose(0, 1), 0);
  expect(localShard.isContiguous).toBe(true);
  using total = sum(localShard);
  total.backward();
  expect([...(await fullTensor.grad!.read())]).toEqual([1, 1, 1, 1, 1, 1]);
});

test("unshard keeps only its result in memory", async () => {
  const ranks = await referenceWorld(4, { mesh: { node: 2, gpu: 2 } });
  const shards = ranks.map((ctx) => fromArray(ctx, count(6), [3, 2]));
  // The gather along each of the two mesh axes has a buffer of its own.
  const results = ranks.map((ctx, rank) => unshard(ctx, shards[rank]!, 0));
  await Promise.all(results.map((each) => each.read()));
  for (const [rank, ctx] of ranks.entries()) {
    shards[rank]!.dispose();
    expect(ctx.device.memory().allocated).toBe(4 * 6 * 4);
  }
});

test("shard and unshard reject wrong sizes and options before communication", async () => {
  const ranks = await referenceWorld(3);
  const x = fromArray(ranks[2]!, count(4), [4]);
  expect(() => unshard(ranks[2]!, x, 0, { length: 10 })).toThrow(ShapeError);
  expect(() => unshard(ranks[2]!, x, 0, { length: 10 })).toThrow(/rank 2: expected 3 rows along axis 0/);
  expect(() => shard(ranks[2]!, x, 0, { length: 5 })).toThrow(/expected 5 rows along axis 0, received \[4\]/);
  expect(() => shard(ranks[2]!, x, 0, { axes: ["tp"] })).toThrow(
    /^shard: axes: expected axes of the mesh, sp, received "tp"; add the axis to init\(\{ mesh \}\)$/,
  );
  expect(() => unshard(ranks[2]!, x, 0, { axes: ["sp", "sp"] })).toThrow(
    /^unshard: axes: expected axes of the mesh, sp, received duplicate "sp"; list each axis once$/,
  );
  expect(() => shard(ranks[2]!, x, 0, { place: "zigzag" } as object)).toThrow(
    /shard: expected options among placement/,
  );
  expect(() => shard(ranks[2]!, x, 1)).toThrow(ShapeError);
});
