import {
  add,
  checkpoint,
  type Context,
  type Coordinate,
  type DType,
  DTypeError,
  fromArray,
  Linear,
  noGrad,
  randn,
  reduceGradients,
  ShapeError,
  type Tensor,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import {
  crossEntropy,
  Embedding,
  linearCrossEntropy,
  type LinearCrossEntropyOptions,
  linearCrossEntropyTerms,
  meanOverMesh,
  TiedLinear,
} from "../src/index.ts";
import { mapRows, linear } from "./reference/gradients.ts";
import { numericalDerivative, maxDifference, generateNumbers } from "./reference/numbers.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

const [rows, features, classes] = [12, 3, 5];
const input = generateNumbers(rows * features, 1).map((x) => Math.fround(2 * x));
const weight = generateNumbers(classes * features, 2);
const bias = generateNumbers(classes, 3);
const targets = generateNumbers(rows, 4).map((x, i) => (i % 4 === 1 ? -100 : Math.floor(((x + 1) / 2) * classes)));

interface InputValues {
  readonly x: readonly number[];
  readonly weight: readonly number[];
  readonly bias: readonly number[];
}

/** Returns the mean cross-entropy of the rows with a target class, in float64. */
function referenceLoss(
  { x, weight, bias }: InputValues,
  { labelSmoothing = 0, softcap }: LinearCrossEntropyOptions,
): number {
  const uncappedLogits = linear(x, weight, bias);
  const logits =
    softcap === undefined ? uncappedLogits : uncappedLogits.map((each) => softcap * Math.tanh(each / softcap));
  const losses = mapRows(logits, bias.length, (row) => {
    const lse = Math.log(row.reduce((sum, value) => sum + Math.exp(value), 0));
    return row.map((value) => lse - value);
  });
  const countedRows = targets.flatMap((target, row) => (target === -100 ? [] : [{ target, row }]));
  const total = countedRows.reduce((sum, { target, row }) => {
    const line = losses.slice(row * classes, (row + 1) * classes);
    return sum + (1 - labelSmoothing) * line[target]! + (labelSmoothing / classes) * line.reduce((a, b) => a + b, 0);
  }, 0);
  return total / countedRows.length;
}

function referenceGradients(values: InputValues, options: LinearCrossEntropyOptions): number[][] {
  return (["x", "weight", "bias"] as const).map((name) =>
    numericalDerivative((each) => referenceLoss({ ...values, [name]: each }, options), values[name]),
  );
}

interface LossCase {
  readonly dtype?: DType;
  readonly options?: LinearCrossEntropyOptions;
  /** Whether to compute all logits at once. */
  readonly isUnfused?: boolean;
}

/** Returns the loss, and the gradients of x, weight and bias. */
async function runLoss(
  ctx: Context,
  { dtype = "float32", options = {}, isUnfused: unfused = false }: LossCase,
): Promise<number[][]> {
  using x = fromArray(ctx, input, [3, 4, features], { dtype });
  using head = new Linear(ctx, features, classes, { dtype });
  for (const [parameter, values] of [[head.weight, weight] as const, [head.bias!, bias] as const]) {
    ctx.device.write(parameter, values);
  }
  x.requiresGrad = true;
  using target = fromArray(ctx, targets, [3, 4]);
  using loss = unfused
    ? crossEntropy(ctx, head.forward(x), target, { labelSmoothing: options.labelSmoothing })
    : linearCrossEntropy(ctx, x, head, target, options);
  expect([loss.shape, loss.dtype]).toEqual([[], "float32"]);
  loss.backward();
  const gradients = [x.grad!, head.weight.grad!, head.bias!.grad!];
  for (const [i, inputTensor] of [x, head.weight, head.bias!].entries()) {
    expect([gradients[i]!.shape, gradients[i]!.dtype]).toEqual([inputTensor.shape, dtype]);
  }
  return Promise.all([loss, ...gradients].map(async (each) => Array.from(await each.read())));
}

describe("loss and every gradient match float64", () => {
  const cases: readonly LinearCrossEntropyOptions[] = [
    {},
    { chunkRows: 1 },
    { chunkRows: 5 },
    { chunkRows: 12 },
    { chunkRows: 5, labelSmoothing: 0.1 },
    { chunkRows: 5, labelSmoothing: 1 },
    { chunkRows: 5, softcap: 0.75 },
    { chunkRows: 100, softcap: 30, labelSmoothing: 0.1 },
  ];
  test.each(cases.map((each) => [JSON.stringify(each), each] as const))("%s", (_, options) =>
    onOneRank(async (ctx) => {
      const [loss, ...gradients] = await runLoss(ctx, { options });
      const values = { x: input, weight, bias };
      expect(Math.abs(loss![0]! / referenceLoss(values, options) - 1)).toBeLessThan(1e-6);
      for (const [i, expected] of referenceGradients(values, options).entries()) {
        expect(maxDifference(gradients[i]!, expected)).toBeLessThan(2e-6);
      }
    }),
  );
});

test.each(["float32", "bfloat16", "float16"] as const)(
  "linearCrossEntropy is as exact as crossEntropy of all logits, %s",
  (dtype) =>
    onOneRank(async (ctx) => {
      const roundValues = async (values: readonly number[]) => {
        using x = fromArray(ctx, values, [values.length], { dtype });
        return Array.from(await x.read());
      };
      const values = { x: await roundValues(input), weight: await roundValues(weight), bias: await roundValues(bias) };
      const expected = [[referenceLoss(values, {})], ...referenceGradients(values, {})];
      const fused = await runLoss(ctx, { dtype, options: { chunkRows: 5 } });
      const unfusedGradients = await runLoss(ctx, { dtype, isUnfused: true });
      // The reference is exact to about 1e-9. A 16-bit gradient is rounded once more, at the end.
      const unit = { float32: 2 ** -23, bfloat16: 2 ** -8, float16: 2 ** -11 }[dtype];
      for (const [i, expectedValues] of expected.entries()) {
        const tolerance = 2 * Math.max(maxDifference(unfusedGradients[i]!, expectedValues), unit / 2);
        expect(maxDifference(fused[i]!, expectedValues), ["loss", "x", "weight", "bias"][i]).toBeLessThanOrEqual(
          tolerance,
        );
      }
    }),
);

/** Returns loss and gradients of this rank's part of the rows. */
async function computeOnRank(ctx: Context, isFused: boolean): Promise<number[]> {
  const rowsPerRank = rows / ctx.size;
  const sliceRankRows = (values: readonly number[], width: number) =>
    values.slice(ctx.rank * rowsPerRank * width, (ctx.rank + 1) * rowsPerRank * width);
  using head = new Linear(ctx, features, classes);
  using x = fromArray(ctx, sliceRankRows(input, features), [rowsPerRank, features]);
  using target = fromArray(ctx, sliceRankRows(targets, 1), [rowsPerRank]);
  using loss = isFused
    ? linearCrossEntropy(ctx, x, head, target, { chunkRows: 2 })
    : crossEntropy(ctx, head.forward(x), target);
  loss.backward();
  reduceGradients(ctx, head);
  const actual = await Promise.all(
    [loss, ...head.parameters().map(({ grad }) => grad!)].map((tensor) => tensor.read()),
  );
  return actual.flatMap((values) => Array.from(values));
}

const meshes: readonly Coordinate[] = [
  { sp: 2 },
  { sp: 4 },
  { dp: 2, sp: 2 },
  { dp: 3, sp: 2 },
  { dp_replicate: 2, dp_shard: 3 },
];

test("the mean and its gradients are the same on every mesh, and match crossEntropy", async () => {
  const [expected] = await onMesh({ sp: 1 }, (ctx) => computeOnRank(ctx, false));
  for (const mesh of meshes) {
    const actual = await onMesh(mesh, (ctx) => computeOnRank(ctx, true));
    for (const values of actual) {
      expect(values).toEqual(actual[0]);
      expect(maxDifference(values, expected!), JSON.stringify(mesh)).toBeLessThan(1e-6);
    }
  }
});

test("a rank without rows participates with gradients of zero", async () => {
  const losses = await onMesh({ sp: 2 }, async (ctx) => {
    const count = ctx.rank === 0 ? 4 : 0;
    using head = new Linear(ctx, features, classes);
    using x = fromArray(ctx, input.slice(0, count * features), [count, features]);
    x.requiresGrad = true;
    using target = fromArray(ctx, targets.slice(0, count), [count]);
    using loss = linearCrossEntropy(ctx, x, head, target, { chunkRows: 3, softcap: 5 });
    loss.backward();
    expect(x.grad!.shape).toEqual([count, features]);
    if (ctx.rank === 1) expect(Math.max(...(await head.weight.grad!.read()).map(Math.abs))).toBe(0);
    return loss.item();
  });
  expect(losses[1]).toBe(losses[0]);
});

/** Returns the peak of allocated bytes in forward and backward, minus those allocated before, and the loss. */
async function measurePeak(
  ctx: Context,
  body: () => Tensor,
): Promise<{ readonly bytes: number; readonly loss: number }> {
  const { device } = ctx;
  await device.stream.synchronize();
  const allocatedBefore = device.memory().allocated;
  device.resetPeakMemory();
  using loss = body();
  if (loss.requiresGrad) loss.backward();
  return { loss: await loss.item(), bytes: device.memory().peak - allocatedBefore };
}

describe("peak memory", () => {
  const sizes = { count: 256, width: 16, vocabulary: 131_072 };
  const logits = 4 * sizes.count * sizes.vocabulary;
  const countGradientBytes = ({ count, width, vocabulary }: typeof sizes) => 4 * width * (vocabulary + count);
  /** Allowance for uncounted memory: scalars, pairs for each row, and rounding of the allocator. */
  const MIN_CHUNK_BYTES = 2 ** 16;

  async function measureLossPeak(
    ctx: Context,
    computeLoss: (head: TiedLinear, x: Tensor, target: Tensor) => Tensor,
    { count, width, vocabulary } = sizes,
  ) {
    using embed = new Embedding(ctx, vocabulary, width);
    using head = new TiedLinear(embed);
    const normalInit = { kind: "normal", mean: 0, std: 0.1, seed: 1, stream: 2 } as const;
    ctx.device.kernels.random(embed.weight, normalInit);
    using x = randn(ctx, [count, width], { seed: 1, stream: 1 });
    x.requiresGrad = true;
    using target = fromArray(
      ctx,
      generateNumbers(count, 5).map((each) => Math.floor(((each + 1) / 2) * vocabulary)),
      [count],
    );
    return await measurePeak(ctx, () => computeLoss(head, x, target));
  }

  test.each([8, 32])(
    "is that of the gradients and two chunks of %d rows, and less than that of all logits",
    (chunkRows) =>
      onOneRank(async (ctx) => {
        const fused = await measureLossPeak(ctx, (head, x, target) =>
          linearCrossEntropy(ctx, x, head, target, { chunkRows }),
        );
        const expected = 2 * 4 * chunkRows * sizes.vocabulary + countGradientBytes(sizes);
        expect(fused.bytes).toBeGreaterThanOrEqual(expected);
        expect(fused.bytes).toBeLessThan(expected + MIN_CHUNK_BYTES);
        expect(fused.bytes).toBeLessThan(logits);
      }),
  );

  test("is at most one chunk if no gradient is required", () =>
    onOneRank(async (ctx) => {
      const fused = await measureLossPeak(ctx, (head, x, target) =>
        noGrad(() => linearCrossEntropy(ctx, x, head, target, { chunkRows: 8 })),
      );
      expect(fused.bytes).toBeLessThan(4 * 8 * sizes.vocabulary + MIN_CHUNK_BYTES);
    }));

  test.each([
    [{ count: 1024, width: 4, vocabulary: 8192 }, 256],
    [{ count: 1024, width: 64, vocabulary: 128 }, 512],
    [{ count: 100, width: 4, vocabulary: 8192 }, 100],
  ])("with sizes %j is by default that of chunks of %d rows", (otherSizes, chunkRows) =>
    onOneRank(async (ctx) => {
      const fused = await measureLossPeak(
        ctx,
        (head, x, target) => linearCrossEntropy(ctx, x, head, target),
        otherSizes,
      );
      const expected = 2 * 4 * chunkRows * otherSizes.vocabulary + countGradientBytes(otherSizes);
      expect(fused.bytes).toBeGreaterThanOrEqual(expected);
      expect(fused.bytes).toBeLessThan(expected + MIN_CHUNK_BYTES);
    }),
  );

  test("is less than an eighth of the peak of crossEntropy, which holds all logits twice", () =>
    onOneRank(async (ctx) => {
      const options = { chunkRows: 16 };
      const fused = await measureLossPeak(ctx, (head, x, target) => linearCrossEntropy(ctx, x, head, target, options));
      const unfusedPeak = await measureLossPeak(ctx, (head, x, target) => crossEntropy(ctx, head.forward(x), target));
      expect(unfusedPeak.bytes).toBeGreaterThan(2 * logits);
      expect(fused.bytes).toBeLessThan(unfusedPeak.bytes / 8);
      expect(Math.abs(fused.loss / unfusedPeak.loss - 1)).toBeLessThan(1e-6);
    }));
});

test("the loss is the same in a checkpoint, over micro-batches and without a gradient", () =>
  onOneRank(async (ctx) => {
    using head = new Linear(ctx, features, classes);
    using x = fromArray(ctx, input, [rows, features]);
    using target = fromArray(ctx, targets, [rows]);
    const gradient = async (loss: Tensor): Promise<number[]> => {
      loss.backward();
      const actualGradient = Array.from(await head.weight.grad!.read());
      head.zeroGrad();
      return [await loss.item(), ...actualGradient];
    };
    const expected = await gradient(linearCrossEntropy(ctx, x, head, target));
    x.requiresGrad = true;
    expect(await gradient(checkpoint((x) => linearCrossEntropy(ctx, x, head, target), x))).toEqual(expected);
    const computePartTerms = (start: number, end: number) =>
      linearCrossEntropyTerms(x.slice(0, start, end), head, target.slice(0, start, end));
    const summedGradient = await gradient(meanOverMesh(ctx, add(computePartTerms(0, 5), computePartTerms(5, rows))));
    expect(maxDifference(summedGradient, expected)).toBeLessThan(1e-6);
    const referenceLossTensor = noGrad(() => linearCrossEntropy(ctx, x, head, target));
    expect([referenceLossTensor.requiresGrad, await referenceLossTensor.item()]).toEqual([false, expected[0]]);
  }));

test("only tensors that require a gradient receive one, and all memory is released", () =>
  onOneRank(async (ctx) => {
    const allocatedBefore = ctx.device.memory().allocated;
    for (const dtype of ["float32", "bfloat16"] as const) {
      using head = new Linear(ctx, features, classes, { dtype });
      using x = fromArray(ctx, input, [rows, features], { dtype });
      using target = fromArray(ctx, targets, [rows]);
      for (const headParameter of head.parameters()) headParameter.requiresGrad = false;
      x.requiresGrad = true;
      using loss = linearCrossEntropy(ctx, x, head, target);
      loss.backward();
      expect([head.weight.grad, head.bias!.grad]).toEqual([null, null]);
      expect(x.grad!.shape).toEqual([rows, features]);
      x.grad!.dispose();
      using droppedLoss = linearCrossEntropy(ctx, x, head, target);
      expect(droppedLoss.requiresGrad).toBe(true);
    }
    expect(ctx.device.memory().allocated).toBe(allocatedBefore);
  }));

test("invalid shapes, dtypes and options are rejected", () =>
  onOneRank((ctx) => {
    using x = fromArray(ctx, input, [rows, features]);
    using target = fromArray(ctx, targets, [rows]);
    using head = new Linear(ctx, features, classes);
    using shortTargets = fromArray(ctx, targets.slice(1), [rows - 1]);
    expect(() => linearCrossEntropy(ctx, x, head, shortTargets)).toThrow(/received \[12,3\], \[5,3\], \[5\], \[11\]/);
    expect(() => linearCrossEntropy(ctx, target, head, target)).toThrow(ShapeError);
    expect(() => linearCrossEntropy(ctx, x, { weight: head.weight, bias: x }, target)).toThrow(ShapeError);
    expect(() => linearCrossEntropy(ctx, x, undefined as never, target)).toThrow(/head: expected a Linear/);
    expect(() => linearCrossEntropy(ctx, x.to("bfloat16"), head, target)).toThrow(DTypeError);
    expect(() => linearCrossEntropy(ctx, x, head, target, { chunkRows: 0 })).toThrow(
      /chunkRows: expected an integer ≥ 1/,
    );
    expect(() => linearCrossEntropy(ctx, x, head, target, { softcap: 0 })).toThrow(/softcap: expected a number > 0/);
  }));

test("without a row that counts, the loss is NaN and all gradients are 0, as in PyTorch", () =>
  onOneRank(async (ctx) => {
    for (const computeLoss of [linearCrossEntropy, crossEntropyOfLinear]) {
      using head = new Linear(ctx, 3, 4);
      using x = randn(ctx, [2, 3]);
      x.requiresGrad = true;
      using ignored = fromArray(ctx, [-100, -100], [2]);
      using loss = computeLoss(ctx, x, head, ignored);
      loss.backward();
      expect(await loss.item()).toBeNaN();
      for (const { grad } of [x, head.weight, head.bias!]) {
        expect((await grad!.read()).every((value) => value === 0)).toBe(true);
      }
    }
  }));

function crossEntropyOfLinear(ctx: Context, x: Tensor, head: Linear, target: Tensor): Tensor {
  return crossEntropy(ctx, head.forward(x), target);
}
