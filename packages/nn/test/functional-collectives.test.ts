import { type Context, fromArray, functionalCollectives, scope, shard, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { onMesh, onOneRank } from "./reference/world.ts";

// A tensor-parallel MLP with sequence parallelism, as in Megatron-LM: x is sharded by rows, the weights by features.

const [rows, features, hidden] = [8, 6, 12] as const;
const numbers = (count: number, seed: number) => Array.from({ length: count }, (_, i) => Math.sin(7 * i + seed));

/** Returns the output and the gradients of x and of both weights, all unsharded. */
async function runMlp(ctx: Context): Promise<number[][]> {
  const { world } = ctx;
  const createShard = (seed: number, shape: readonly number[], axis: number): Tensor => {
    using full = fromArray(ctx, numbers(shape[0]! * shape[1]!, seed), shape);
    const leaf = shard(ctx, full, axis).detach();
    leaf.requiresGrad = true;
    return leaf;
  };
  using x = createShard(1, [rows, features], 0);
  using up = createShard(2, [features, hidden], 1);
  using down = createShard(3, [hidden, features], 0);
  using out = scope(() => {
    const gathered = functionalCollectives.allGather(x, world, 0);
    return functionalCollectives.reduceScatter(gathered.matmul(up).gelu().matmul(down), world, 0);
  });
  using loss = scope(() => functionalCollectives.allReduce(out.square().sum(), world, "mean"));
  loss.backward();
  const results: [Tensor, number][] = [
    [out, 0],
    [x.grad!, 0],
    [up.grad!, 1],
    [down.grad!, 0],
  ];
  return Promise.all(
    results.map(async ([part, axis]) => {
      using full = functionalCollectives.allGather(part, world, axis);
      return [...(await full.read())];
    }),
  );
}

test.each([2, 4])("a tensor-parallel MLP on %i ranks has the output and the gradients of one rank", async (ranks) => {
  const reference = await onOneRank(runMlp);
  for (const results of await onMesh({ sp: ranks }, runMlp)) {
    for (const [i, result] of results.entries()) {
      expect(result.length).toBe(reference[i]!.length);
      for (const [j, value] of result.entries()) expect(value).toBeCloseTo(reference[i]![j]!, 4);
    }
  }
});
