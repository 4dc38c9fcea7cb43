import { describe, expect, test } from "vitest";
import { fromArray } from "../../src/creation.ts";
import { rand, randn } from "../../src/random.ts";
import { OptionError } from "../../src/errors.ts";
import { init } from "../../src/init.ts";
import { createParameter } from "../../src/modules/parameters.ts";
import { layerNorm, rmsNorm } from "../../src/ops/norm.ts";
import { ReferenceDevice } from "../reference/index.ts";

describe("numbers that mean nothing are refused", () => {
  const odd = [Number.NaN, Number.POSITIVE_INFINITY];

  test.each([{ low: 2, high: 1 }, ...odd.flatMap((x) => [{ low: x }, { high: x }, { low: -x, high: x }])])(
    "rand %o",
    (options) => {
      expect(() => rand(new ReferenceDevice(), [2], options)).toThrow(OptionError);
      expect(() => rand(new ReferenceDevice(), [2], options)).toThrow(
        /rand: (expected finite low ≤ high|(low|high): expected a finite number)/,
      );
    },
  );

  test.each([{ std: -1 }, ...odd.flatMap((x) => [{ std: x }, { mean: x }])])("randn %o", (options) => {
    expect(() => randn(new ReferenceDevice(), [2], options)).toThrow(OptionError);
    expect(() => randn(new ReferenceDevice(), [2], options)).toThrow(
      /randn: (mean: expected a finite number|std: expected a number ≥ 0), received/,
    );
  });

  test("those of a parameter", async () => {
    await using ctx = await init({ device: new ReferenceDevice(), rank: 0, worldSize: 1 });
    const make = (initial: Parameters<typeof createParameter>[2]["initial"]) => () =>
      createParameter(ctx, [2], { initial });
    expect(make({ kind: "normal", mean: 0, std: Number.NaN })).toThrow(OptionError);
    expect(make({ kind: "uniform", low: 1, high: 0 })).toThrow(OptionError);
    make({ kind: "uniform", low: 0, high: 0 })().dispose();
  });

  test.each([-1e-5, ...odd])("epsilon %d", (epsilon) => {
    using x = fromArray(new ReferenceDevice(), [1, 2], [1, 2]);
    expect(() => layerNorm(x, null, null, { epsilon })).toThrow(/layerNorm: epsilon: expected a number ≥ 0/);
    expect(() => rmsNorm(x, null, { epsilon })).toThrow(/rmsNorm: epsilon: expected a number ≥ 0/);
  });

  const texts: [values: ArrayLike<unknown>, message: RegExp][] = [
    [["a"], /fromArray: values\[0\]: expected a number, received "a"/],
    [[1, "2"], /values\[1\]: .* received "2"/],
    [[1, undefined], /values\[1\]: .* received undefined/],
    // oxlint-disable-next-line no-sparse-arrays -- a gap is what is refused
    [[1, , 3], /values\[1\]/],
    [[null], /values\[0\]: .* received null/],
    [[[1]], /values\[0\]/],
    [[1n], /values\[0\]: .* received 1n/],
    [BigInt64Array.of(1n), /values\[0\]: .* received 1n/],
  ];
  test.each(texts)("fromArray(%o)", (values, message) => {
    const make = () => fromArray(new ReferenceDevice(), values as ArrayLike<number>, [values.length]);
    expect(make).toThrow(OptionError);
    expect(make).toThrow(message);
  });

  test("NaN and infinities are numbers", async () => {
    const device = new ReferenceDevice();
    for (const values of [[Number.NaN, Infinity], Float32Array.of(Number.NaN, Infinity), new Int8Array(2)]) {
      using x = fromArray(device, values, [2]);
      expect(Array.from(await x.read())).toEqual(Array.from(values));
    }
  });
});
