import { rand, type RandomSpec } from "@mosaic/core";
import { expect, test } from "vitest";
import { layouts, onEveryIsa, allocateWithLayout } from "./sample.ts";

const normal: RandomSpec = { kind: "normal", mean: 0, std: 1, seed: 42, stream: 3 };
const uniform: RandomSpec = { kind: "uniform", low: 0, high: 1, seed: 0, stream: 0 };

onEveryIsa("random", (device) => {
  test("matches the published Philox4x32-10 vectors of Random123", async () => {
    const drawBits = async (spec: RandomSpec): Promise<string[]> => {
      using x = device().empty([4], "float32");
      device().kernels.random(x, spec);
      return Array.from(await x.read(), (value) => (value * 2 ** 24).toString(16).padStart(6, "0"));
    };
    // kat_vectors: counter 0, key 0 → 6627e8d5 e169c58d bc57ac4c 9b00dbd8; the upper 24 bits are used.
    expect(await drawBits(uniform)).toEqual(["6627e8", "e169c5", "bc57ac", "9b00db"]);
  });

  test("produces the same fixed bits on every instruction set", async () => {
    using x = device().empty([100_003], "float32");
    device().kernels.random(x, normal);
    const words = new Uint32Array((await x.read()).buffer);
    expect(words.reduce((hash, word) => (Math.imul(hash, 31) + word) | 0, 0)).toBe(-1706756207);
  });

  test("computes element i only from the seed, the stream and i", async () => {
    using longTensor = device().empty([1000], "float32");
    device().kernels.random(longTensor, normal);
    const expected = Array.from(await longTensor.read());
    for (const layout of layouts) {
      using x = allocateWithLayout(device(), [5, 7, 20], "float32", layout);
      device().kernels.random(x, normal);
      expect(Array.from(await x.read())).toEqual(expected.slice(0, 700));
    }
    for (const otherSpec of [
      { ...normal, seed: 43 },
      { ...normal, stream: 4 },
    ]) {
      device().kernels.random(longTensor, otherSpec);
      const actual = await longTensor.read();
      expect(expected.filter((value, i) => value === actual[i]).length).toBeLessThan(5);
    }
  });

  test("produces values with the expected moments and range", async () => {
    const n = 200_000;
    using x = device().empty([n], "float32");
    device().kernels.random(x, { ...normal, mean: 2, std: 3 });
    const values = await x.read();
    const moment = (power: number): number => values.reduce((sum, each) => sum + ((each - 2) / 3) ** power, 0) / n;
    expect(moment(1)).toBeCloseTo(0, 1);
    expect(moment(2)).toBeCloseTo(1, 1);
    expect(moment(4)).toBeCloseTo(3, 0);
    device().kernels.random(x, { ...uniform, low: -1, high: 3 });
    const uniformValues = await x.read();
    expect(uniformValues.every((each) => each >= -1 && each < 3)).toBe(true);
    expect(uniformValues.reduce((sum, each) => sum + each, 0) / n).toBeCloseTo(1, 1);
  });

  test("stays below `high` even where rounding would reach it", async () => {
    using x = device().empty([50_000], "float32");
    device().kernels.random(x, { ...uniform, low: 1, high: 1 + 2 ** -22 });
    expect((await x.read()).every((each) => each >= 1 && each < 1 + 2 ** -22)).toBe(true);
  });

  test.each([
    ["bfloat16", 0, 1, 1 - 2 ** -8],
    ["float16", 0, 1, 1 - 2 ** -11],
    ["bfloat16", -3, -2, -2 - 2 ** -6],
    ["float16", 0, 0.7, 0.6997],
  ] as const)(
    "draws %s numbers from %d to %d that stay below the bound after rounding",
    async (dtype, low, high, largest) => {
      using x = rand(device(), [100_000], { low, high, dtype, seed: 1, stream: 1 });
      const values = await x.read();
      const [minimum, maximum] = values.reduce(
        ([a, b], value) => [Math.min(a, value), Math.max(b, value)],
        [Infinity, -Infinity],
      );
      expect(minimum).toBeGreaterThanOrEqual(low);
      expect(maximum).toBeLessThan(high);
      expect(maximum).toBeGreaterThanOrEqual(largest);
    },
  );
});
