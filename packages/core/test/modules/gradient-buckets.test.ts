import { describe, expect, test } from "vitest";
import { fromArray } from "../../src/creation.ts";
import type { Coordinate } from "../../src/mesh.ts";
import { allReduceGradients, planBuckets } from "../../src/modules/gradient-buckets.ts";
import { Linear } from "../../src/modules/linear.ts";
import { reduceGradients } from "../../src/modules/parameters.ts";
import type { Tensor } from "../../src/tensor.ts";
import { type ReferenceDevice, referenceWorld, values } from "../reference/index.ts";

const readValues = (x: Tensor) => (x.device as ReferenceDevice).values(x);

test("buckets have the given capacity, except the last one, and contain every element once, in order", () => {
  for (const [sizes, capacity] of [
    [[3, 0, 5, 1, 20, 2], 4],
    [[4, 4], 4],
    [[1, 1, 1], 100],
    [[7], 1],
  ] as const) {
    const buckets = planBuckets(sizes, capacity);
    const total = sizes.reduce((sum: number, size) => sum + size, 0);
    expect(buckets.length).toBe(Math.ceil(total / capacity));
    for (const { size } of buckets.slice(0, -1)) expect(size).toBe(capacity);
    const elements = buckets.flatMap(({ size, parts }) => {
      const bucketElements = Array.from<string>({ length: size });
      for (const { index, start, end, offset } of parts)
        for (let i = start; i < end; i++) bucketElements[offset + i - start] = `${index}:${i}`;
      return bucketElements;
    });
    expect(elements).toEqual(sizes.flatMap((size, index) => Array.from({ length: size }, (_, i) => `${index}:${i}`)));
  }
  expect(planBuckets([], 4)).toEqual([]);
  expect(planBuckets([0, 0], 4)).toEqual([]);
});

describe("allReduceGradients", () => {
  test.each([
    [{ dp: 2, sp: 2 }, 1000],
    [{ dp: 2, sp: 2 }, 5],
    [{ sp: 2, dp: 3 }, 7],
    [{ node: 2, dp: 2, gpu: 2 }, 5],
    [{ sp: 3 }, 1],
    [{ dp: 4 }, 6],
    [{ dp_replicate: 3, dp_shard: 2 }, 6],
    [{ dp_replicate: 2, sp: 2, dp_shard: 2 }, 5],
  ])(
    "returns the mean along data-parallel axes of the sums along all other axes: mesh %j, buckets of %i elements",
    async (mesh, capacity) => {
      const { dp = 1, dp_replicate: replicas = 1, dp_shard: shards = 1 } = mesh as Coordinate;
      const shapes = [[2, 3], [4], [0], [3, 2]] as const;
      const size = Object.values(mesh).reduce((product, length) => product * length, 1);
      const ranks = await referenceWorld(size, { mesh, double: true });
      const gradients = (rank: number) => shapes.map(([rows, columns = 1], i) => values(rows * columns, 10 * rank + i));
      const parametersByRank = ranks.map((ctx, rank) =>
        shapes.map((shape, i) => {
          const parameter = fromArray(ctx, values(gradients(rank)[i]!.length, 99), shape);
          parameter.grad = fromArray(ctx, gradients(rank)[i]!, shape);
          return parameter;
        }),
      );
      const allocated = ranks[0]!.device.memory().allocated;
      for (const [rank, parameters] of parametersByRank.entries())
        allReduceGradients(ranks[rank]!, parameters, capacity);
      for (const parameters of parametersByRank) {
        for (const [i, { grad }] of parameters.entries()) {
          const reduced = await readValues(grad!);
          const expected = ranks
            .map((_, rank) => gradients(rank)[i]!)
            .reduce((sum, each) => sum.map((value, j) => value + each[j]!))
            .map((sum) => sum / (dp * replicas * shards));
          expect(reduced.length).toBe(expected.length);
          for (const [j, value] of expected.entries()) expect(reduced[j]).toBeCloseTo(value, 12);
        }
      }
      expect(ranks[0]!.device.memory().allocated).toBe(allocated);
    },
  );

  test("reduces 16-bit gradients and views that are not contiguous", async () => {
    const ranks = await referenceWorld(2, { mesh: { dp: 2 } });
    const parametersByRank = ranks.map((ctx, rank) => {
      const half = fromArray(ctx, [0, 0, 0], [3], { dtype: "float16" });
      half.grad = fromArray(ctx, [1, 2, 3 + rank], [3], { dtype: "float16" });
      const transposed = fromArray(ctx, [0, 0, 0, 0, 0, 0], [2, 3]);
      transposed.grad = fromArray(ctx, [1, 2, 3, 4, 5, 6 + 10 * rank], [3, 2]).transpose(0, 1);
      return [half, transposed];
    });
    for (const [rank, parameters] of parametersByRank.entries()) allReduceGradients(ranks[rank]!, parameters, 4);
    for (const [half, transposed] of parametersByRank) {
      expect(half!.grad!.dtype).toBe("float16");
      expect(await readValues(half!.grad!)).toEqual([1, 2, 3.5]);
      expect(await readValues(transposed!.grad!)).toEqual([1, 3, 5, 2, 4, 11]);
    }
  });

  test("does not overflow if the mean is finite", async () => {
    const ranks = await referenceWorld(2, { mesh: { dp: 2 } });
    const largest = 3e38;
    const modules = ranks.map((ctx) => new Linear(ctx, 1, 1));
    for (const [rank, { weight }] of modules.entries()) weight.grad = fromArray(ranks[rank]!, [largest], [1, 1]);
    for (const [rank, module] of modules.entries()) reduceGradients(ranks[rank]!, module);
    for (const { weight } of modules) expect(await readValues(weight.grad!)).toEqual([Math.fround(largest)]);
  });
});

test("a gradient that replaces a reduced one is summed over all ranks", async () => {
  const ranks = await referenceWorld(2, { mesh: { sp: 2 } });
  const sums = ranks.map((ctx) => {
    const layer = new Linear(ctx, 1, 1, { bias: false });
    layer.weight.grad = fromArray(ctx, [1], [1, 1]);
    reduceGradients(ctx, layer);
    layer.weight.grad.dispose();
    layer.weight.grad = fromArray(ctx, [10 + ctx.rank], [1, 1]);
    reduceGradients(ctx, layer);
    return readValues(layer.weight.grad);
  });
  expect(await Promise.all(sums)).toEqual([[21], [21]]);
});
