import { describe, expect, test } from "vitest";
import type { Context } from "../../src/context.ts";
import { fromArray } from "../../src/creation.ts";
import { causal, documents, full, prefix, slidingWindow } from "../../src/mask/index.ts";
import type { Mask } from "../../src/mask/slice.ts";
import { CrossAxisAttention } from "../../src/modules/cross-axis-attention.ts";
import type { Module } from "../../src/modules/module.ts";
import { MultiAxisAttention } from "../../src/modules/multi-axis-attention.ts";
import { MultiAxisAttention2D } from "../../src/modules/multi-axis-attention-2d.ts";
import { reduceGradients } from "../../src/modules/parameters.ts";
import { contiguous, type Placement, type PlacementName } from "../../src/placement/placement.ts";
import { shard, unshard } from "../../src/placement/shard.ts";
import { type Shape, numel } from "../../src/shape.ts";
import type { Tensor } from "../../src/tensor.ts";
import { allGatherBackend, type ReferenceDevice, referenceWorld, values } from "../reference/index.ts";

// Every rank holds a shard. Output, input gradients and parameter gradients must equal those of a single rank with the
// whole sequence.

interface Input {
  readonly shape: Shape;
  readonly axis: number;
  readonly placement: PlacementName | Placement;
}

interface ModuleCase {
  readonly createModule: (ctx: Context, backend: string) => Module;
  readonly runForward: (module: Module, inputs: Tensor[]) => Tensor;
  readonly inputs: readonly Input[];
}

/** Returns the placement; "contiguous" for a single rank, which holds the whole sequence. */
function selectPlacement(ctx: Context, placement: Input["placement"]): Input["placement"] {
  return ctx.size > 1 ? placement : "contiguous";
}

/** Returns the unsharded output and input gradients, then the parameter gradients. */
async function computeResults(
  ctx: Context,
  { createModule: make, runForward: run, inputs }: ModuleCase,
): Promise<number[][]> {
  const device = ctx.device as ReferenceDevice;
  using module = make(ctx, ctx.size > 1 ? "gather" : "local");
  const placedInputs = inputs.map(({ shape, axis, placement }) => ({
    shape,
    axis,
    options: { placement: selectPlacement(ctx, placement), length: shape.at(axis)! },
  }));
  const leaves = placedInputs.map(({ shape, axis, options }, i) => {
    using fullInput = fromArray(ctx, values(numel(shape), i + 1), shape);
    const leaf = shard(ctx, fullInput, axis, options).detach();
    leaf.requiresGrad = true;
    return leaf;
  });
  const [firstInput] = placedInputs as [(typeof placedInputs)[0]];
  using out = run(module, leaves);
  expect(out.shape).toEqual(leaves[0]!.shape);
  expect(out.isContiguous).toBe(true);
  using weights = fromArray(ctx, values(numel(firstInput.shape), 99), firstInput.shape);
  using seed = shard(ctx, weights, firstInput.axis, firstInput.options);
  out.backward(seed);
  reduceGradients(ctx, module);
  const fullResults = [out, ...leaves.map((leaf) => leaf.grad!)].map((x, i) => {
    const { axis, options } = placedInputs[Math.max(0, i - 1)]!;
    return unshard(ctx, x, axis, options);
  });
  return Promise.all([...fullResults, ...module.parameters().map((each) => each.grad!)].map((x) => device.values(x)));
}

async function compareWithSingleRank(size: number, moduleCase: ModuleCase): Promise<void> {
  const [singleContext] = await referenceWorld(1, { double: true });
  const expected = await computeResults(singleContext!, moduleCase);
  const ranks = await referenceWorld(size, { double: true, backends: [allGatherBackend()] });
  for (const actual of await Promise.all(ranks.map((ctx) => computeResults(ctx, moduleCase)))) {
    expect(actual.length).toBe(expected.length);
    for (const [i, expectedValues] of expected.entries()) {
      expect(actual[i]!.length).toBe(expectedValues.length);
      for (const [j, value] of expectedValues.entries()) expect(actual[i]![j]).toBeCloseTo(value, 9);
    }
  }
}

const embedOptions = { embedDim: 8, numHeads: 4, numKvHeads: 2 };

interface AxisCaseOptions {
  readonly mask?: Mask;
  readonly placement?: Input["placement"];
  readonly useCheckpoint?: boolean;
}

function createAxisCase(
  axis: number,
  shape: Shape,
  { mask = full(), placement = "contiguous", ...moduleOptions }: AxisCaseOptions = {},
): ModuleCase {
  const sequenceLength = shape.at(axis)!;
  return {
    createModule: (ctx, backend) =>
      new MultiAxisAttention(ctx, {
        ...embedOptions,
        ...moduleOptions,
        attentionAxis: axis,
        backend,
        mask,
        placement: selectPlacement(ctx, placement),
        sequenceLength,
      }),
    runForward: (module, [x]) => (module as MultiAxisAttention).forward(x!),
    inputs: [{ shape, axis, placement }],
  };
}

const masks: readonly Mask[] = [full(), causal(), slidingWindow(3), documents([2, 0, 5], "causal"), prefix(3)];

describe("MultiAxisAttention on several ranks", () => {
  test.each(masks.map((mask) => [mask.name, mask] as const))("equals one rank: %s, any placement", async (_, mask) => {
    for (const placement of ["contiguous", "zigzag", "striped"] as const) {
      await compareWithSingleRank(3, createAxisCase(1, [2, 7, 8], { mask, placement }));
    }
  });

  test.each([1, 2, 4, 5])("equals one rank on %i ranks", (size) =>
    compareWithSingleRank(size, createAxisCase(1, [1, 6, 8], { mask: causal(), placement: "zigzag" })),
  );

  test.each([
    [0, [5, 2, 8]],
    [-2, [2, 5, 8]],
    [1, [2, 5, 3, 8]],
    [-4, [5, 2, 2, 8]],
    [0, [5, 8]],
  ])("equals one rank along axis %i of shape %j", (axis, shape) =>
    compareWithSingleRank(2, createAxisCase(axis, shape)),
  );

  test("equals one rank with more ranks than rows, and with given shard lengths", async () => {
    await compareWithSingleRank(4, createAxisCase(1, [1, 3, 8], { mask: causal() }));
    await compareWithSingleRank(3, createAxisCase(1, [1, 6, 8], { mask: causal(), placement: contiguous([1, 5, 0]) }));
  });

  test("equals one rank with useCheckpoint", () =>
    compareWithSingleRank(2, createAxisCase(1, [2, 4, 8], { useCheckpoint: true })));
});

test("MultiAxisAttention2D equals one rank for adjacent, separate and reversed axes", async () => {
  for (const placement of ["contiguous", "zigzag", "striped"] as const) {
    for (const [axis1, axis2] of [
      [1, 2],
      [1, 3],
      [3, 1],
      [-2, 0],
    ] as const) {
      const shape = [2, 3, 2, 4, 8];
      await compareWithSingleRank(2, {
        createModule: (ctx, backend) =>
          new MultiAxisAttention2D(ctx, {
            ...embedOptions,
            axis1,
            axis2,
            backend,
            placement,
            causal: true,
            sequenceLength: shape.at(axis1)!,
          }),
        runForward: (module, [x]) => (module as MultiAxisAttention2D).forward(x!),
        inputs: [{ shape, axis: axis1, placement }],
      });
    }
  }
});

test("CrossAxisAttention equals one rank with different lengths, placements and embedding sizes", () =>
  compareWithSingleRank(3, {
    createModule: (ctx, backend) =>
      new CrossAxisAttention(ctx, {
        ...embedOptions,
        qAxis: 1,
        kvAxis: 0,
        kvEmbedDim: 6,
        backend,
        causal: true,
        placement: "striped",
        kvPlacement: "zigzag",
        sequenceLength: 5,
        kvSequenceLength: 7,
      }),
    runForward: (module, [q, kv]) => (module as CrossAxisAttention).forward(q!, kv!),
    inputs: [
      { shape: [2, 5, 8], axis: 1, placement: "striped" },
      { shape: [7, 2, 1, 6], axis: 0, placement: "zigzag" },
    ],
  }));
