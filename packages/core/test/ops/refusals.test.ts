import { inspect } from "node:util";
import { describe, expect, test } from "vitest";
import { fromArray } from "../../src/creation.ts";
import { rand, randn } from "../../src/random.ts";
import { MosaicError, OptionError } from "../../src/errors.ts";
import "../../src/index.ts";
import { init } from "../../src/init.ts";
import { createParameter } from "../../src/modules/parameters.ts";
import { add, mul } from "../../src/ops/pointwise.ts";
import { layerNorm, rmsNorm } from "../../src/ops/norm.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice } from "../reference/index.ts";

describe("code written for PyTorch", () => {
  const x = fromArray(new ReferenceDevice(), [1, 2], [2]);
  const untypedNumber = 2 as unknown as Tensor;

  test.each([
    [() => mul(untypedNumber, x), /mul: expected a Tensor first, received 2; write mul\(x, 2\)/],
    [() => add(untypedNumber, x), /add: expected a Tensor first, received 2; write add\(x, 2\)/],
    [() => x.matmul(untypedNumber), /matmul: expected a Tensor, received 2$/],
  ])("a number in place of a tensor is rejected with the reason, %#", (run, message) => {
    expect(run).toThrow(OptionError);
    expect(run).toThrow(message);
  });

  test("operators on tensors are rejected, and string conversion is allowed", () => {
    const untypedTensor = x as unknown as number;
    for (const run of [
      () => untypedTensor + untypedTensor,
      () => untypedTensor / 2,
      () => -untypedTensor,
      () => untypedTensor < 1,
      () => Number(x),
    ]) {
      expect(run).toThrow(MosaicError);
      expect(run).toThrow(/operator on a tensor; write x\.add\(y\)/);
    }
    const text = "Tensor [2] float32 on reference:0";
    // oxlint-disable-next-line typescript/restrict-template-expressions -- what is tested
    expect([`${x}`, String(x), inspect(x), inspect({ x })]).toEqual([text, text, text, `{ x: ${text} }`]);
    expect(x === fromArray(x.device, [1, 2], [2])).toBe(false);
  });

  test("JSON contains shape, dtype and device, also for gradients and disposed tensors", () => {
    const json = { shape: [2], dtype: "float32", device: "reference:0" };
    const y = fromArray(x.device, [1, 2], [2]);
    y.requiresGrad = true;
    y.square().sum().backward();
    expect(JSON.parse(JSON.stringify({ x, grad: y.grad, list: [y] }))).toEqual({ x: json, grad: json, list: [json] });
    y.dispose();
    expect(JSON.parse(JSON.stringify(y))).toEqual(json);
  });

  test("silu equals x · sigmoid(x) and is differentiable", async () => {
    const values = [-20, -1, 0, 0.5, 30];
    const y = fromArray(x.device, values, [5]);
    y.requiresGrad = true;
    const out = y.silu();
    out.sum().backward();
    const sigmoid = (v: number) => 1 / (1 + Math.exp(-v));
    for (const [i, v] of values.entries()) {
      expect((await out.read())[i]).toBeCloseTo(v * sigmoid(v), 5);
      expect((await y.grad!.read())[i]).toBeCloseTo(sigmoid(v) * (1 + v * (1 - sigmoid(v))), 5);
    }
  });
});

describe("validation of numbers", () => {
  const nonFiniteValues = [Number.NaN, Number.POSITIVE_INFINITY];

  test.each([{ low: 2, high: 1 }, ...nonFiniteValues.flatMap((x) => [{ low: x }, { high: x }, { low: -x, high: x }])])(
    "rand rejects %o",
    (options) => {
      expect(() => rand(new ReferenceDevice(), [2], options)).toThrow(OptionError);
      expect(() => rand(new ReferenceDevice(), [2], options)).toThrow(
        /rand: (expected finite low and high with low ≤ high|(low|high): expected a finite number)/,
      );
    },
  );

  test.each([{ std: -1 }, ...nonFiniteValues.flatMap((x) => [{ std: x }, { mean: x }])])(
    "randn rejects %o",
    (options) => {
      expect(() => randn(new ReferenceDevice(), [2], options)).toThrow(OptionError);
      expect(() => randn(new ReferenceDevice(), [2], options)).toThrow(
        /randn: (mean: expected a finite number|std: expected a number ≥ 0), received/,
      );
    },
  );

  test("createParameter rejects invalid initial distributions", async () => {
    await using ctx = await init({ device: new ReferenceDevice(), rank: 0, worldSize: 1 });
    const createInitialized = (initial: Parameters<typeof createParameter>[2]["initial"]) => () =>
      createParameter(ctx, [2], { initial });
    expect(createInitialized({ kind: "normal", mean: 0, std: Number.NaN })).toThrow(OptionError);
    expect(createInitialized({ kind: "uniform", low: 1, high: 0 })).toThrow(OptionError);
    createInitialized({ kind: "uniform", low: 0, high: 0 })().dispose();
  });

  test.each([-1e-5, ...nonFiniteValues])("layerNorm and rmsNorm reject epsilon %d", (epsilon) => {
    using x = fromArray(new ReferenceDevice(), [1, 2], [1, 2]);
    expect(() => layerNorm(x, null, null, { epsilon })).toThrow(/layerNorm: epsilon: expected a number ≥ 0/);
    expect(() => rmsNorm(x, null, { epsilon })).toThrow(/rmsNorm: epsilon: expected a number ≥ 0/);
  });

  const textValues: [values: ArrayLike<unknown>, message: RegExp][] = [
    [["a"], /fromArray: values\[0\]: expected a number, received "a"/],
    [[1, "2"], /values\[1\]: .* received "2"/],
    [[1, undefined], /values\[1\]: .* received undefined/],
    // oxlint-disable-next-line no-sparse-arrays -- a gap is what is rejected
    [[1, , 3], /values\[1\]/],
    [[null], /values\[0\]: .* received null/],
    [[[1]], /values\[0\]/],
    [[1n], /values\[0\]: .* received 1n/],
    [BigInt64Array.of(1n), /values\[0\]: .* received 1n/],
  ];
  test.each(textValues)("fromArray rejects %o", (values, message) => {
    const createFromValues = () => fromArray(new ReferenceDevice(), values as ArrayLike<number>, [values.length]);
    expect(createFromValues).toThrow(OptionError);
    expect(createFromValues).toThrow(message);
  });

  test("fromArray accepts NaN and infinities", async () => {
    const device = new ReferenceDevice();
    for (const values of [[Number.NaN, Infinity], Float32Array.of(Number.NaN, Infinity), new Int8Array(2)]) {
      using x = fromArray(device, values, [2]);
      expect(Array.from(await x.read())).toEqual(Array.from(values));
    }
  });
});
