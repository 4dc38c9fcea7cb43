import { describe, expect, test } from "vitest";
import { checkpoint } from "../../src/autograd/checkpoint.ts";
import * as functional from "../../src/collectives/functional.ts";
import type { Context } from "../../src/context.ts";
import { fromArray } from "../../src/creation.ts";
import { OptionError, ShapeError } from "../../src/errors.ts";
import { scope } from "../../src/scope.ts";
import { type Shape, numel } from "../../src/shape.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice, referenceWorld, values } from "../reference/index.ts";

/** A function of this rank's input. It calls collectives. */
type RankFunction = (x: Tensor, ctx: Context) => Tensor;

/** Runs `run` on all ranks. Returns the contexts, the inputs and the outputs by rank. */
async function runOnRanks(
  run: RankFunction,
  shape: Shape,
  { inputs, ranks = 3 }: { inputs: readonly (readonly number[])[]; ranks?: number },
) {
  const contexts = await referenceWorld(ranks, { double: true });
  const leaves = contexts.map((ctx, rank) => {
    const x = fromArray(ctx, inputs[rank]!, shape);
    x.requiresGrad = true;
    return x;
  });
  const outputs = contexts.map((ctx, rank) => scope(() => run(leaves[rank]!, ctx)));
  return { contexts, leaves, outputs };
}

const readValues = (x: Tensor) => (x.device as ReferenceDevice).values(x);

/** Returns different input values on every rank. */
const createInputs = (shape: Shape, ranks = 3) =>
  Array.from({ length: ranks }, (_, rank) => values(numel(shape), rank + 1));

/** Compares the gradients with central differences of the sum of all ranks' losses, and checks that no memory leaks. */
async function checkGradients(run: RankFunction, shape: Shape): Promise<void> {
  const computeLoss = async (inputs: readonly (readonly number[])[]): Promise<number> => {
    const { outputs } = await runOnRanks(run, shape, { inputs });
    const results = await Promise.all(outputs.map(readValues));
    return results
      .flatMap((result, rank) => result.map((value, i) => value * values(result.length, 50 + rank)[i]!))
      .reduce((sum, value) => sum + value, 0);
  };
  const inputs = createInputs(shape);
  const { contexts, leaves, outputs } = await runOnRanks(run, shape, { inputs });
  for (const [rank, output] of outputs.entries()) {
    using dOut = fromArray(contexts[rank]!, values(output.size, 50 + rank), output.shape);
    output.backward(dOut);
    output.dispose();
  }
  const step = 1e-5;
  for (const [rank, leaf] of leaves.entries()) {
    const gradient = await readValues(leaf.grad!);
    for (const [i, value] of inputs[rank]!.entries()) {
      const shifted = (offset: number) => inputs.with(rank, inputs[rank]!.with(i, value + offset));
      const slope = ((await computeLoss(shifted(step))) - (await computeLoss(shifted(-step)))) / (2 * step);
      expect(gradient[i], `rank ${rank}, element ${i}`).toBeCloseTo(slope, 6);
    }
    leaf.grad!.dispose();
    leaf.dispose();
    expect(contexts[rank]!.device.memory().allocated).toBe(0);
  }
}

const cases: Readonly<Record<string, readonly [Shape, RankFunction]>> = {
  "allReduce, sum": [[2, 3], (x, { world }) => functional.allReduce(x, world).square()],
  "allReduce, mean": [[2, 3], (x, { world }) => functional.allReduce(x, world, "mean").square()],
  "allReduce, of a transposed tensor": [
    [2, 3],
    (x, { world }) => functional.allReduce(x.transpose(0, 1), world).square(),
  ],
  "allReduce, of a scalar": [[], (x, { world }) => functional.allReduce(x, world).square()],
  "allGather, first axis": [[2, 2], (x, { world }) => functional.allGather(x, world, 0).square()],
  "allGather, last axis": [[2, 1, 3], (x, { world }) => functional.allGather(x, world, -1).square()],
  "reduceScatter, first axis": [[3, 2], (x, { world }) => functional.reduceScatter(x, world, 0).square()],
  "reduceScatter, mean, inner axis": [
    [2, 6, 2],
    (x, { world }) => functional.reduceScatter(x, world, 1, "mean").square(),
  ],
  "a checkpoint": [
    [2, 3],
    (x, { world }) => checkpoint((x) => functional.allReduce(x.square(), world, "mean").square(), x),
  ],
  "all-gather, then reduce-scatter": [
    [2, 2],
    (x, { world }) => functional.reduceScatter(functional.allGather(x, world, 0).square(), world, 0),
  ],
};

describe("functional collectives", () => {
  test.each(Object.entries(cases))(
    "have gradients that agree with finite differences, and leave no memory allocated: %s",
    async (_, [shape, run]) => checkGradients(run, shape),
  );

  test("return a new tensor with the result of the collective, and leave the input unchanged", async () => {
    const inputs = [0, 1, 2].map((rank) => [1, 2, 3, 4, 5, 6].map((value) => value * 10 ** rank));
    const results = async (run: RankFunction) => {
      const { leaves, outputs } = await runOnRanks(run, [3, 2], { inputs });
      expect(await Promise.all(leaves.map(readValues))).toEqual(inputs);
      return { shape: outputs[0]!.shape, values: await Promise.all(outputs.map(readValues)) };
    };
    const sums = [111, 222, 333, 444, 555, 666];
    expect(await results((x, { world }) => functional.allReduce(x, world))).toEqual({
      shape: [3, 2],
      values: [sums, sums, sums],
    });
    expect((await results((x, { world }) => functional.allReduce(x, world, "mean"))).values[1]).toEqual(
      sums.map((sum) => sum / 3),
    );
    const gathered = [1, 2, 10, 20, 100, 200, 3, 4, 30, 40, 300, 400, 5, 6, 50, 60, 500, 600];
    expect(await results((x, { world }) => functional.allGather(x, world, 1))).toEqual({
      shape: [3, 6],
      values: [gathered, gathered, gathered],
    });
    expect(await results((x, { world }) => functional.reduceScatter(x, world, 0))).toEqual({
      shape: [1, 2],
      values: [sums.slice(0, 2), sums.slice(2, 4), sums.slice(4)],
    });
  });

  test("keep the dtype", async () => {
    const [ctx] = await referenceWorld(1);
    const x = fromArray(ctx!, [1, 2], [2], { dtype: "bfloat16" });
    expect(functional.allReduce(x, ctx!.world).dtype).toBe("bfloat16");
    expect(functional.allGather(x, ctx!.world, 0).dtype).toBe("bfloat16");
    expect(functional.reduceScatter(x, ctx!.world, 0).dtype).toBe("bfloat16");
  });

  test("reject invalid arguments before anything is sent", async () => {
    const [ctx, other] = await referenceWorld(2);
    const x = fromArray(ctx!, [1, 2, 3], [3]);
    const { world } = ctx!;
    expect(() => functional.allReduce(1 as never, world)).toThrow(/^allReduce: expected a Tensor, received 1/);
    expect(() => functional.allReduce(x, "sp" as never)).toThrow(
      'allReduce: group: expected a ProcessGroup, such as ctx.world, received "sp"',
    );
    expect(() => functional.allReduce(x, world, "max" as never)).toThrow(
      'allReduce: op: expected "sum" or "mean", received "max"',
    );
    expect(() => functional.allReduce(x, other!.world)).toThrow(OptionError);
    expect(() => functional.allGather(x, world, 1)).toThrow("allGather: expected an axis from -1 to 0, received 1");
    expect(() => functional.reduceScatter(x, world, 0)).toThrow(
      "reduceScatter, rank 0: expected a multiple of 2, the number of ranks, along axis 0, received [3]",
    );
    expect(() => functional.reduceScatter(x, world, 2)).toThrow(ShapeError);
  });
});
