import {
  add,
  type Context,
  type Coordinate,
  fromArray,
  Linear,
  ones,
  reduceGradients,
  sum,
  type Tensor,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { crossEntropy, crossEntropyTerms, lossTerms, meanOverMesh, mseLoss, mseLossTerms } from "../src/index.ts";
import { mapRows, linear } from "./reference/gradients.ts";
import { numericalDerivative, generateNumbers, maxDifference } from "./reference/numbers.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

const [rows, classes] = [12, 5];
const logits = generateNumbers(rows * classes, 1).map((x) => Math.fround(8 * x));
const targets = generateNumbers(rows, 2).map((x, i) => (i % 4 === 1 ? -100 : Math.floor(((x + 1) / 2) * classes)));

/** Returns the mean cross-entropy of the rows with a target class, in float64. */
function referenceLoss(x: readonly number[], smoothing = 0): number {
  const losses = mapRows(x, classes, (row) => {
    const maxLogit = Math.max(...row);
    const lse = maxLogit + Math.log(row.reduce((sum, value) => sum + Math.exp(value - maxLogit), 0));
    return row.map((value) => lse - value);
  });
  const countedRows = targets.flatMap((target, row) => (target === -100 ? [] : [{ target, row }]));
  const total = countedRows.reduce((sum, { target, row }) => {
    const line = losses.slice(row * classes, (row + 1) * classes);
    return sum + (1 - smoothing) * line[target]! + (smoothing / classes) * line.reduce((a, b) => a + b, 0);
  }, 0);
  return total / countedRows.length;
}

describe("cross-entropy", () => {
  test.each([0, 0.1, 1])("matches float64 in value and gradient, smoothing %d", (labelSmoothing) =>
    onOneRank(async (ctx) => {
      using x = fromArray(ctx, logits, [3, 4, classes]);
      x.requiresGrad = true;
      using target = fromArray(ctx, targets, [3, 4]);
      using loss = crossEntropy(ctx, x, target, { labelSmoothing });
      expect(loss.shape).toEqual([]);
      loss.backward();
      const expected = referenceLoss(logits, labelSmoothing);
      expect(Math.abs((await loss.item()) - expected) / expected).toBeLessThan(1e-6);
      const gradient = numericalDerivative((each) => referenceLoss(each, labelSmoothing), logits);
      expect(maxDifference(await x.grad!.read(), gradient)).toBeLessThan(2e-6);
    }),
  );

  test("is float32 for 16-bit logits, with a gradient of their dtype", () =>
    onOneRank(async (ctx) => {
      using float32Logits = fromArray(ctx, logits, [rows, classes]);
      using x = float32Logits.to("bfloat16").detach();
      x.requiresGrad = true;
      using target = fromArray(ctx, targets, [rows]);
      using loss = crossEntropy(ctx, x, target);
      loss.backward();
      expect([loss.dtype, x.grad!.dtype]).toEqual(["float32", "bfloat16"]);
      const gradientSeen = Array.from(await x.read());
      expect(Math.abs((await loss.item()) - referenceLoss(gradientSeen)) / referenceLoss(gradientSeen)).toBeLessThan(
        1e-6,
      );
    }));

  test("is the mean of the summed pairs of micro-batches", () =>
    onOneRank(async (ctx) => {
      using x = fromArray(ctx, logits, [rows, classes]);
      using target = fromArray(ctx, targets, [rows]);
      const computePartTerms = (start: number, end: number): Tensor =>
        crossEntropyTerms(x.slice(0, start, end), target.slice(0, start, end));
      using terms = add(computePartTerms(0, 2), computePartTerms(2, rows));
      using loss = meanOverMesh(ctx, terms);
      expect(Math.abs((await loss.item()) - referenceLoss(logits))).toBeLessThan(1e-6);
    }));

  test("is NaN without valid targets, as in PyTorch, and supports another ignoreIndex and large logits", () =>
    onOneRank(async (ctx) => {
      using x = fromArray(ctx, [1e4, -1e4, 0, 0], [2, 2]);
      using ignoredTargets = fromArray(ctx, [-100, -100], [2]);
      expect(await crossEntropy(ctx, x, ignoredTargets).item()).toBeNaN();
      using validTargets = fromArray(ctx, [1, 0], [2]);
      expect(await crossEntropy(ctx, x, validTargets, { ignoreIndex: 0 }).item()).toBe(20_000);
    }));

  test("rejects invalid shapes and options", () =>
    onOneRank((ctx) => {
      using x = fromArray(ctx, logits, [rows, classes]);
      using shortTargets = fromArray(ctx, targets.slice(1), [rows - 1]);
      expect(() => crossEntropy(ctx, x, shortTargets)).toThrow(
        /logits \[..,C\] with C ≥ 1 and targets \[..\], received \[12,5\] and \[11\]/,
      );
      using target = fromArray(ctx, targets, [rows]);
      expect(() => crossEntropy(ctx, x, target, { labelSmoothing: 2 })).toThrow(/from 0 to 1, received 2/);
      expect(() => crossEntropy(ctx, x, target, { smoothing: 0 } as never)).toThrow(/options among ignoreIndex/);
      expect(() => meanOverMesh(ctx, x)).toThrow(/a pair \(sum, count\)/);
      expect(() => mseLoss(ctx, x, target)).toThrow(/a target \[12,5\]/);
      expect(() => lossTerms(x, target)).toThrow(/weights \[12,5\]/);
    }));

  test("reports a target that is not a class", async () => {
    // Closing a failed device also fails. This test checks the error of the loss itself.
    let error: unknown;
    const closedContext = onOneRank(async (ctx) => {
      using x = fromArray(ctx, logits, [rows, classes]);
      using target = fromArray(ctx, targets.with(0, classes), [rows]);
      // A failure of the stream is thrown by the next operation that is enqueued, or by a read.
      try {
        await crossEntropy(ctx, x, target).item();
      } catch (closedError) {
        error = closedError;
      }
    });
    await closedContext.catch(() => {});
    expect(error).toBeInstanceOf(Error);
    expect(String(error)).toMatch(/crossEntropy: expected integers from 0 to 4, received 5/);
  });
});

test("mean squared error and its gradient match float64, with and without weights, which receive no gradient", () =>
  onOneRank(async (ctx) => {
    const [a, b, weights] = [generateNumbers(12, 3), generateNumbers(12, 4), generateNumbers(12, 5).map(Math.abs)];
    for (const lossWeights of [undefined, weights]) {
      const total = lossWeights ? lossWeights.reduce((x, y) => x + y) : 12;
      const f = (x: readonly number[]) =>
        x.reduce((sum, value, i) => sum + (lossWeights?.[i] ?? 1) * (value - b[i]!) ** 2, 0) / total;
      using x = fromArray(ctx, a, [3, 4]);
      x.requiresGrad = true;
      using target = fromArray(ctx, b, [3, 4]);
      using weight = lossWeights && fromArray(ctx, lossWeights, [3, 4]);
      if (weight) weight.requiresGrad = true;
      using loss = mseLoss(ctx, x, target, weight);
      loss.backward();
      expect(weight?.grad ?? null).toBeNull();
      expect(Math.abs((await loss.item()) - f(a)) / f(a)).toBeLessThan(1e-6);
      expect(maxDifference(await x.grad!.read(), numericalDerivative(f, a))).toBeLessThan(2e-6);
    }
  }));

const inputs = generateNumbers(rows * 3, 6);

/**
 * Returns loss and gradients of a layer on this rank's rows. Data-parallel ranks and ranks along "sp" have different counts of valid
 * targets.
 */
async function computeGradients(ctx: Context, kind: "crossEntropy" | "mseLoss"): Promise<number[]> {
  const rowsPerRank = rows / ctx.size;
  const sliceRankRows = (values: readonly number[], width: number) =>
    values.slice(ctx.rank * rowsPerRank * width, (ctx.rank + 1) * rowsPerRank * width);
  using layer = new Linear(ctx, 3, classes);
  using x = fromArray(ctx, sliceRankRows(inputs, 3), [rowsPerRank, 3]);
  using out = layer.forward(x);
  using rankTargets = fromArray(
    ctx,
    kind === "crossEntropy" ? sliceRankRows(targets, 1) : sliceRankRows(logits, classes),
    kind === "crossEntropy" ? [rowsPerRank] : [rowsPerRank, classes],
  );
  using loss =
    kind === "crossEntropy" ? crossEntropy(ctx, out, rankTargets) : meanOverMesh(ctx, mseLossTerms(out, rankTargets));
  loss.backward();
  reduceGradients(ctx, layer);
  const actual = await Promise.all(
    [loss, ...layer.parameters().map(({ grad }) => grad!)].map((tensor) => tensor.read()),
  );
  return actual.flatMap((values) => Array.from(values));
}

const meshes: readonly Coordinate[] = [
  { sp: 2 },
  { sp: 4 },
  { dp: 2, sp: 1 },
  { dp: 2, sp: 2 },
  { dp: 3, sp: 2 },
  { dp: 4, node: 1, gpu: 3 },
  { dp_replicate: 2, sp: 3, dp_shard: 2 },
];

test.each(["crossEntropy", "mseLoss"] as const)("%s and its gradients are the same on every mesh", async (kind) => {
  const [expected] = await onMesh({ sp: 1 }, (ctx) => computeGradients(ctx, kind));
  for (const mesh of meshes) {
    const actual = await onMesh(mesh, (ctx) => computeGradients(ctx, kind));
    for (const values of actual) {
      expect(values).toEqual(actual[0]);
      expect(maxDifference(values, expected!), JSON.stringify(mesh)).toBeLessThan(1e-6);
    }
  }
});

test("crossEntropy on a mesh matches float64", async () => {
  const [weight, bias] = await onOneRank(async (ctx) => {
    using layer = new Linear(ctx, 3, classes);
    return Promise.all(layer.parameters().map(async (each) => Array.from(await each.read())));
  });
  const [actual] = await onMesh({ dp: 2, sp: 2 }, (ctx) => computeGradients(ctx, "crossEntropy"));
  expect(actual![0]).toBeCloseTo(referenceLoss(linear(inputs, weight!, bias!)), 5);
});

test("a rank without rows contributes nothing, and has the loss of the other rank", async () => {
  const losses = await onMesh({ sp: 2 }, async (ctx) => {
    const count = ctx.rank === 0 ? 2 : 0;
    using x = fromArray(ctx, [0, 2, 1, 0].slice(0, 2 * count), [count, 2]);
    x.requiresGrad = true;
    using target = fromArray(ctx, [1, 1].slice(0, count), [count]);
    using loss = crossEntropy(ctx, x, target);
    loss.backward();
    expect(x.grad!.shape).toEqual([count, 2]);
    return loss.item();
  });
  expect(losses[0]).toBeCloseTo((Math.log(1 + Math.exp(-2)) + Math.log(1 + Math.E)) / 2, 6);
  expect(losses[1]).toBe(losses[0]);
});

test("meanOverMesh adds large, small and fractional counts of ranks without intermediate rounding", async () => {
  const lossPairs = [
    [2 ** 24 + 4, 2 ** 24],
    [0, 1],
    [0, 1],
    [0, 1],
  ];
  const mean = async (pairs: readonly (readonly number[])[]): Promise<number> => {
    const actual = await onMesh({ sp: pairs.length }, async (ctx) => {
      using terms = fromArray(ctx, pairs[ctx.rank]!, [2]);
      using loss = meanOverMesh(ctx, terms);
      return loss.item();
    });
    expect(new Set(actual).size).toBe(1);
    return actual[0]!;
  };
  // 2²⁴ + 3 is rounded once, to 2²⁴ + 4. Added one by one, the sum would have remained 2²⁴.
  expect(await mean(lossPairs)).toBe(1);
  expect(
    await mean([
      [6, 0.75],
      [6, 2.25],
    ]),
  ).toBe(4);
  expect(
    await mean([
      [10_000, 4097],
      [-1808, 4095],
    ]),
  ).toBe(1);
});

test("reduceGradients sets zeros for unused parameters, but not for frozen ones, on one and two ranks", async () => {
  for (const mesh of [{ sp: 1 }, { sp: 2 }]) {
    await onMesh(mesh, async (ctx) => {
      using layer = new Linear(ctx, 2, 2);
      layer.weight.requiresGrad = false;
      reduceGradients(ctx, layer);
      expect(layer.weight.grad).toBe(null);
      using total = sum(layer.bias!.grad!);
      expect(await total.item()).toBe(0);
    });
  }
});

test("weighted losses release all memory", () =>
  onOneRank(async (ctx) => {
    const allocatedBefore = ctx.device.memory().allocated;
    for (const dtype of ["float32", "bfloat16"] as const) {
      using losses = ones(ctx, [6, 50], { dtype });
      using weights = ones(ctx, [6, 50], { dtype });
      losses.requiresGrad = true;
      using terms = lossTerms(losses, weights);
      using loss = meanOverMesh(ctx, terms);
      loss.backward();
      losses.grad?.dispose();
    }
    expect(ctx.device.memory().allocated).toBe(allocatedBefore);
  }));
