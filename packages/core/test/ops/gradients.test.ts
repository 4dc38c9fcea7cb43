import { describe, expect, test } from "vitest";
import { checkpoint } from "../../src/autograd/checkpoint.ts";
import { add, div, mul, scale, sub } from "../../src/ops/pointwise.ts";
import { fromArray } from "../../src/creation.ts";
import { concatenate, roll, stack } from "../../src/ops/concatenate.ts";
import { gated } from "../../src/ops/gated.ts";
import { linear } from "../../src/ops/linear.ts";
import { matmul } from "../../src/ops/matmul.ts";
import { layerNorm, rmsNorm } from "../../src/ops/norm.ts";
import * as pointwise from "../../src/ops/pointwise.ts";
import { max, mean, min, sum } from "../../src/ops/reduction.ts";
import { softmax } from "../../src/ops/softmax.ts";
import { LOWEST_FLOAT32 } from "../../src/storage.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice } from "../reference/device.ts";
import { checkGradients, type GradientCase } from "../reference/gradients.ts";

/** Runs an operation on transposed x, and disposes the view. */
const transposeInput =
  (operation: (x: Tensor, ...otherInputs: Tensor[]) => Tensor) =>
  (x: Tensor, ...otherInputs: Tensor[]): Tensor => {
    using view = x.transpose(0, 1);
    return operation(view, ...otherInputs);
  };

const positiveRange = [0.5, 2] as const;

const cases: Readonly<Record<string, GradientCase>> = {
  add: {
    shapes: [
      [2, 3],
      [2, 3],
    ],
    run: add,
  },
  "add, broadcast both ways": {
    shapes: [
      [2, 1, 3],
      [4, 1],
    ],
    run: add,
  },
  "add, to itself": { shapes: [[3]], run: (x) => add(x, x) },
  sub: { shapes: [[2, 3], [3]], run: sub },
  mul: {
    shapes: [
      [2, 3],
      [2, 1],
    ],
    run: mul,
  },
  "mul, by itself": { shapes: [[3]], run: (x) => mul(x, x) },
  div: {
    shapes: [
      [2, 3],
      [1, 3],
    ],
    range: positiveRange,
    run: div,
  },
  "div, a scalar by": { shapes: [[], [2, 2]], range: positiveRange, run: div },
  "add, a number": { shapes: [[4]], run: (x) => add(x, 2) },
  "sub, a number": { shapes: [[4]], run: (x) => sub(x, 2) },
  "mul, by a number": { shapes: [[4]], run: (x) => mul(x, -2.5) },
  "div, by a number": { shapes: [[4]], run: (x) => div(x, -2.5) },
  scale: { shapes: [[4]], run: (x) => scale(x, -2.5) },
  neg: { shapes: [[4]], run: pointwise.neg },
  exp: { shapes: [[4]], run: pointwise.exp },
  log: { shapes: [[4]], range: positiveRange, run: pointwise.log },
  sqrt: { shapes: [[4]], range: positiveRange, run: pointwise.sqrt },
  rsqrt: { shapes: [[4]], range: positiveRange, run: pointwise.rsqrt },
  tanh: { shapes: [[4]], run: pointwise.tanh },
  sigmoid: { shapes: [[4]], run: pointwise.sigmoid },
  relu: { shapes: [[4]], run: pointwise.relu },
  gelu: { shapes: [[4]], run: (x) => pointwise.gelu(x) },
  "gelu, approximated by tanh": { shapes: [[4]], run: (x) => pointwise.gelu(x, { approximate: "tanh" }) },
  silu: { shapes: [[4]], run: pointwise.silu },
  square: { shapes: [[4]], run: pointwise.square },
  matmul: {
    shapes: [
      [2, 3],
      [3, 4],
    ],
    run: matmul,
  },
  "matmul, batched": {
    shapes: [
      [2, 2, 3],
      [2, 3, 2],
    ],
    run: matmul,
  },
  "matmul, one matrix for a batch": {
    shapes: [
      [2, 2, 3],
      [3, 2],
    ],
    run: matmul,
  },
  "matmul, batch broadcast": {
    shapes: [
      [2, 1, 2, 3],
      [2, 3, 2],
    ],
    run: matmul,
  },
  "matmul, transposed": {
    shapes: [
      [3, 2],
      [3, 2],
    ],
    run: transposeInput((a, b) => matmul(a, b)),
  },
  linear: { shapes: [[2, 2, 3], [4, 3], [4]], run: (x, weight, bias) => linear(x, weight, bias) },
  "linear, no bias": {
    shapes: [
      [2, 3],
      [4, 3],
    ],
    run: (x, weight) => linear(x, weight),
  },
  "linear, relu": { shapes: [[2, 2, 3], [4, 3], [4]], run: (x, w, b) => linear(x, w, b, "relu") },
  "linear, gelu, permuted": {
    shapes: [[3, 2], [4, 3], [4]],
    run: transposeInput((x, w, b) => linear(x, w, b, "gelu")),
  },
  "linear, tanh, no bias": {
    shapes: [
      [2, 3],
      [4, 3],
    ],
    run: (x, weight) => linear(x, weight, null, "tanh"),
  },
  "linear, a gate": {
    shapes: [[2, 2, 3], [4, 3], [4], [2, 2, 4]],
    run: (x, w, b, gate) => linear(x, w, b, null, gate),
  },
  "linear, a gate with silu": {
    shapes: [[2, 2, 3], [4, 3], [4], [2, 2, 4]],
    run: (x, w, b, gate) => linear(x, w, b, "silu", gate),
  },
  "linear, a gate with relu, no bias, permuted": {
    shapes: [
      [3, 2],
      [4, 3],
      [2, 4],
    ],
    run: transposeInput((x, w, gate) => linear(x, w, null, "relu", gate)),
  },
  gated: {
    shapes: [
      [2, 3],
      [2, 3],
    ],
    run: (x, gate) => gated(x, gate),
  },
  "gated, gelu": {
    shapes: [
      [2, 3],
      [2, 3],
    ],
    run: (x, gate) => gated(x, gate, "gelu"),
  },
  "linear, one row, permuted": { shapes: [[3, 2], [4, 3], [4]], run: transposeInput((x, w, b) => linear(x, w, b)) },
  "sum, all": { shapes: [[2, 3]], run: (x) => sum(x) },
  "sum, one axis": { shapes: [[2, 3, 2]], run: (x) => sum(x, -2) },
  "sum, axes kept": { shapes: [[2, 3, 2]], run: (x) => sum(x, [0, 2], { keepDims: true }) },
  mean: { shapes: [[2, 3]], run: (x) => mean(x, 0) },
  "mean of all": { shapes: [[2, 3]], run: (x) => mean(x, undefined, { keepDims: true }) },
  "max, all": { shapes: [[2, 3]], run: (x) => max(x) },
  "max, one axis": { shapes: [[2, 3, 2]], run: (x) => max(x, -2) },
  "max, axes kept, permuted": { shapes: [[2, 3]], run: transposeInput((x) => max(x, [0], { keepDims: true })) },
  "max, of a scalar": { shapes: [[]], run: (x) => max(x) },
  "max, of one": { shapes: [[2, 1]], run: (x) => max(x, 1) },
  "min, all": { shapes: [[2, 3]], run: (x) => min(x) },
  "min, one axis": { shapes: [[2, 3, 2]], run: (x) => min(x, -2) },
  "min, axes kept, permuted": { shapes: [[2, 3]], run: transposeInput((x) => min(x, [0], { keepDims: true })) },
  softmax: { shapes: [[2, 4]], run: (x) => softmax(x) },
  "softmax, inner axis": { shapes: [[2, 3, 2]], run: (x) => softmax(x, 1) },
  layerNorm: { shapes: [[2, 4], [4], [4]], run: (x, weight, bias) => layerNorm(x, weight, bias) },
  "layerNorm, bare, permuted": { shapes: [[4, 2]], run: transposeInput((x) => layerNorm(x)) },
  rmsNorm: { shapes: [[2, 4], [4]], run: (x, weight) => rmsNorm(x, weight) },
  "rmsNorm, weight + 1": { shapes: [[2, 4], [4]], run: (x, weight) => rmsNorm(x, weight, { weightOffset: 1 }) },
  "rmsNorm, bare": { shapes: [[2, 4]], run: (x) => rmsNorm(x, null, { weightOffset: 1 }) },
  concatenate: {
    shapes: [
      [2, 1],
      [2, 3],
      [2, 0],
    ],
    run: (a, b, c) => concatenate([a, b, c, a], 1),
  },
  stack: {
    shapes: [
      [2, 3],
      [2, 3],
    ],
    run: (a, b) => stack([a, b, a], 1),
  },
  "stack, scalars": { shapes: [[], []], run: (a, b) => stack([a, b], -1) },
  roll: { shapes: [[2, 5]], run: (x) => roll(x, -2, 1) },
  "roll, by nothing": { shapes: [[3, 2]], run: (x) => roll(x, 4, -1) },
  reshape: { shapes: [[2, 6]], run: (x) => x.reshape([3, -1]) },
  "reshape, with a copy": { shapes: [[2, 3]], run: transposeInput((x) => x.reshape([6])) },
  permute: { shapes: [[2, 3, 2]], run: (x) => x.permute([2, 0, -2]) },
  slice: { shapes: [[3, 5]], run: (x) => x.slice(1, 1, 5, 2) },
  "slice, empty": { shapes: [[3, 2]], run: (x) => x.slice(0, 3) },
  squeeze: { shapes: [[1, 3, 1, 2]], run: (x) => x.squeeze() },
  "squeeze, permuted": { shapes: [[3, 1]], run: transposeInput((x) => x.squeeze(0)) },
  unsqueeze: { shapes: [[2, 3]], run: (x) => x.unsqueeze(-2) },
  select: { shapes: [[3, 4, 2]], run: (x) => x.select(1, -2) },
  split: {
    shapes: [[2, 5]],
    run: (x) => {
      const parts = x.split(2, 1);
      try {
        return concatenate(parts.toReversed(), 1);
      } finally {
        for (const part of parts) part.dispose();
      }
    },
  },
  "split, one part": {
    shapes: [[4, 2]],
    run: (x) => {
      const [first, second, third] = x.split([1, 0, 3], 0);
      second!.dispose();
      first!.dispose();
      return third!;
    },
  },
  expand: { shapes: [[2, 1]], run: (x) => x.expand([3, 2, 4]) },
  contiguous: { shapes: [[2, 3]], run: transposeInput((x) => x.contiguous()) },
  "a tensor used on many ways": {
    shapes: [[2, 2]],
    run: (x) => {
      using y = pointwise.tanh(x);
      using z = mul(y, x);
      using t = y.transpose(0, 1);
      using w = add(z, t);
      return matmul(w, y);
    },
  },
  checkpoint: {
    shapes: [
      [2, 2],
      [2, 2],
    ],
    run: (x, w) =>
      checkpoint(
        (x, w) => {
          using y = matmul(x, w);
          using z = pointwise.tanh(y);
          return add(z, x);
        },
        x,
        w,
      ),
  },
  "checkpoint, a weight that the body brings along": {
    shapes: [
      [2, 2],
      [2, 2],
    ],
    run: (x, w) => checkpoint((x) => matmul(x, w), x),
  },
};

describe("gradients of operations", () => {
  test.each(Object.entries(cases))("agree with finite differences and leave no memory allocated: %s", (_, each) =>
    checkGradients(each),
  );
});

test("min distributes its gradient evenly among equal minima, including infinities, and returns NaN where max does", async () => {
  const device = new ReferenceDevice();
  const [low, high] = [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY];
  for (const dtype of ["float32", "bfloat16"] as const) {
    using x = fromArray(device, [9, 7, 7, 7, high, high, high, high, 1, low, 3, low], [3, 4], { dtype });
    x.requiresGrad = true;
    using minValues = min(x, 1);
    using gradient = fromArray(device, [3, 2, 4], [3], { dtype });
    minValues.backward(gradient);
    expect(await minValues.read()).toEqual(Float32Array.of(7, high, low));
    expect(x.grad!.dtype).toBe(dtype);
    expect(Array.from(await x.grad!.read())).toEqual([0, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0, 2, 0, 2]);
    x.grad!.dispose();
  }
  using withNaN = fromArray(device, [1, Number.NaN, -2, 0], [2, 2]);
  using minima = min(withNaN, 1);
  using negated = withNaN.neg();
  using maxima = max(negated, 1);
  expect(await minima.read()).toEqual((await maxima.read()).map((value) => -value));
  expect(() => min(fromArray(device, [], [0]))).toThrow(
    /^min: expected at least one element along axis 0, received \[0\]/,
  );
});

test("max and min of rows of an empty shard are empty, and an error along an empty axis", async () => {
  const device = new ReferenceDevice();
  for (const reduceRows of [max, min]) {
    using x = fromArray(device, [], [2, 0, 3]);
    x.requiresGrad = true;
    using extremes = reduceRows(x, -1);
    expect(extremes.shape).toEqual([2, 0]);
    using total = extremes.sum();
    total.backward();
    expect(x.grad!.shape).toEqual([2, 0, 3]);
    expect(await total.item()).toBe(0);
    for (const axes of [1, [1, 2], undefined])
      expect(() => reduceRows(x, axes)).toThrow(/: expected at least one element along axis 1, received \[2,0,3\]/);
    x.grad!.dispose();
  }
});

test("max distributes its gradient evenly among equal maxima, including infinities", async () => {
  const device = new ReferenceDevice();
  const [low, high] = [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY];
  for (const dtype of ["float32", "bfloat16"] as const) {
    using x = fromArray(device, [2, 7, 7, 7, low, low, low, low, 1, high, -3, high], [3, 4], { dtype });
    x.requiresGrad = true;
    using maxValues = max(x, 1);
    using gradient = fromArray(device, [3, 2, 4], [3], { dtype });
    maxValues.backward(gradient);
    expect(await maxValues.read()).toEqual(Float32Array.of(7, low, high));
    expect(x.grad!.dtype).toBe(dtype);
    expect(Array.from(await x.grad!.read())).toEqual([0, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0, 2, 0, 2]);
    x.grad!.dispose();
  }
  expect(device.memory().allocated).toBe(0);
});

test("mean does not overflow in float16, for large values or many elements", async () => {
  const device = new ReferenceDevice();
  using x = fromArray(device, [60_000, 50_016, 40_000, 30_000], [2, 2], { dtype: "float16" });
  x.requiresGrad = true;
  using meanOfAll = mean(x);
  using rows = mean(x, 1);
  using count = fromArray(device, new Float32Array(70_000).fill(1), [70_000], { dtype: "float16" });
  using meanOfMany = mean(count);
  meanOfAll.backward();
  // 44 992 is 45 004 rounded to float16.
  expect([meanOfAll.dtype, meanOfAll.shape, await meanOfAll.item()]).toEqual(["float16", [], 44_992]);
  expect(Array.from(await rows.read())).toEqual([55_008, 35_008]);
  expect(await meanOfMany.item()).toBe(1);
  expect(Array.from(await x.grad!.read())).toEqual([0.25, 0.25, 0.25, 0.25]);
});

test("reductions and norms reject unknown options, reductions axes that occur twice, and norms reject tensors without axes", () => {
  const device = new ReferenceDevice();
  using x = fromArray(device, [1, 2], [2]);
  using scalar = fromArray(device, [1], []);
  using matrix = fromArray(device, [1, 2, 3, 4], [2, 2]);
  for (const reduction of [sum, mean, max, min]) {
    expect(() => reduction(matrix, [0, -2])).toThrow(/expected distinct axes, received \[0,-2\] of 2 axes/);
    expect(() => reduction(x, 0, { keepdim: true } as object)).toThrow(
      /expected options among keepDims, received "keepdim"/,
    );
  }
  expect(() => layerNorm(x, null, null, { eps: 1 } as object)).toThrow(/layerNorm: expected options among epsilon/);
  expect(() => rmsNorm(x, null, { eps: 1 } as object)).toThrow(/rmsNorm: expected options among epsilon/);
  for (const norm of [layerNorm, rmsNorm])
    expect(() => norm(scalar)).toThrow(/expected x \[\.\.,E\] with the features as the last axis/);
});

test.each([
  [
    [1, Infinity, -Infinity],
    [0, 1, 0],
  ],
  [
    [-Infinity, -Infinity],
    [0.5, 0.5],
  ],
  [
    [Infinity, 2, Infinity],
    [0.5, 0, 0.5],
  ],
  // The largest finite number and infinity are different.
  [
    [LOWEST_FLOAT32, -Infinity, -Infinity],
    [1, 0, 0],
  ],
  [
    [-LOWEST_FLOAT32, Infinity, 0],
    [0, 1, 0],
  ],
  // As for PyTorch's amax, no element equals NaN, so that the gradient of all elements is 0 / 0.
  [
    [1, NaN],
    [NaN, NaN],
  ],
])("max with infinities and NaN: the gradient for %j is %j", async (values, expected) => {
  using device = new ReferenceDevice();
  using x = fromArray(device, values, [values.length]);
  x.requiresGrad = true;
  using y = max(x);
  y.backward();
  expect(Array.from(await x.grad!.read())).toEqual(expected);
});

test("div has a finite gradient if only the reciprocal of the divisor is not", async () => {
  const device = new ReferenceDevice();
  for (const [dtype, a, b] of [
    ["float32", 2 ** -140, 2 ** -130],
    ["float16", 2 ** -24, 2 ** -18],
  ] as const) {
    using dividend = fromArray(device, [a, 0], [2], { dtype });
    using divisor = fromArray(device, [b, b], [2], { dtype });
    divisor.requiresGrad = true;
    using quotient = div(dividend, divisor);
    quotient.backward(fromArray(device, [1, 1], [2], { dtype }));
    expect(Array.from(await divisor.grad!.read())).toEqual([-a / b / b, -0]);
  }
});
