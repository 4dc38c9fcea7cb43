import { readFileSync } from "node:fs";
import { fromArray, MultiAxisAttention, OptionError, shard, unshard } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { RotaryEmbedding, type RopeScaling, ropeScaling } from "../src/index.ts";
import { numericalDerivative, maxDifference, generateNumbers } from "./reference/numbers.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

/** Output of rope-scaling.py: results of the functions of Hugging Face transformers, in float32. */
interface Reference {
  readonly scaling: keyof typeof ropeScaling;
  readonly options: { readonly factor: number; readonly originalLength: number };
  readonly headDim: number;
  readonly base: number;
  readonly sequenceLength?: number;
  readonly inverseFrequencies: readonly number[];
  readonly attentionFactor: number;
}
const { cases } = JSON.parse(readFileSync(new URL("reference/rope-scaling.json", import.meta.url), "utf8")) as {
  readonly cases: readonly Reference[];
};

/** Tolerance for float32 powers and products; each frequency is the result of a few. */
const float32Error = 1e-6;

describe("inverse frequencies and attention factors match transformers", () => {
  test.each(cases.map((each) => [`${each.scaling} ${JSON.stringify(each.options)}, ${each.headDim}`, each] as const))(
    "%s",
    (_, { scaling, options, headDim, base, sequenceLength, inverseFrequencies, attentionFactor }) => {
      using rotary = new RotaryEmbedding(headDim, { base, scaling: ropeScaling[scaling](options) });
      const frequencies = rotary.frequencies(sequenceLength);
      expect(frequencies.inverseFrequencies.length).toBe(headDim / 2);
      for (const [i, expected] of inverseFrequencies.entries()) {
        expect(Math.abs(frequencies.inverseFrequencies[i]! / expected - 1), `pair ${i}`).toBeLessThan(float32Error);
      }
      expect(frequencies.attentionFactor).toBeCloseTo(attentionFactor, 12);
    },
  );

  test("the cases include every scaling of transformers", () => {
    const scalings = new Set(cases.map(({ scaling }) => scaling));
    expect([...scalings].toSorted()).toEqual(
      Object.keys(ropeScaling)
        .filter((name) => name !== "ntk")
        .toSorted(),
    );
  });
});

test("NTK-aware scaling divides the lowest frequency by the factor and leaves the highest", () => {
  using plainRotary = new RotaryEmbedding(64);
  using scaledRotary = new RotaryEmbedding(64, { scaling: ropeScaling.ntk({ factor: 8 }) });
  const [plainFrequencies, scaledFrequencies] = [plainRotary, scaledRotary].map(
    (each) => each.frequencies().inverseFrequencies,
  ) as [Float64Array, Float64Array];
  expect(scaledFrequencies[0]).toBe(1);
  expect(plainFrequencies[31]! / scaledFrequencies[31]!).toBeCloseTo(8, 10);
  for (let i = 1; i < 32; i++)
    expect(plainFrequencies[i]! / scaledFrequencies[i]!).toBeGreaterThan(
      plainFrequencies[i - 1]! / scaledFrequencies[i - 1]!,
    );
  // Dynamic scaling equals NTK scaling with the factor for the length: 3 · 4096 / 1024 − 2.
  using dynamicRotary = new RotaryEmbedding(64, {
    scaling: ropeScaling.dynamicNtk({ factor: 3, originalLength: 1024 }),
  });
  using ntkRotary = new RotaryEmbedding(64, { scaling: ropeScaling.ntk({ factor: 10 }) });
  expect([...dynamicRotary.frequencies(4096).inverseFrequencies]).toEqual([
    ...ntkRotary.frequencies().inverseFrequencies,
  ]);
});

test("queries and gradients are rotated by the scaled angles and multiplied by the attention factor", () =>
  onOneRank(async (ctx) => {
    const [rows, dim, scaling] = [3, 8, ropeScaling.yarn({ factor: 4, originalLength: 64 })];
    using rotary = new RotaryEmbedding(dim, { scaling });
    const { inverseFrequencies, attentionFactor } = rotary.frequencies();
    expect(attentionFactor).toBeCloseTo(0.1 * Math.log(4) + 1, 12);
    const rotateReference = (x: readonly number[]): number[] => {
      const out = [...x];
      for (let row = 0; row < rows; row++) {
        for (let i = 0; i < dim / 2; i++) {
          const angle = (100 + row) * inverseFrequencies[i]!;
          const [a, b] = [x[row * dim + i]!, x[row * dim + i + dim / 2]!];
          out[row * dim + i] = attentionFactor * (a * Math.cos(angle) - b * Math.sin(angle));
          out[row * dim + i + dim / 2] = attentionFactor * (b * Math.cos(angle) + a * Math.sin(angle));
        }
      }
      return out;
    };
    const [values, weights] = [generateNumbers(rows * dim, 1), generateNumbers(rows * dim, 2)];
    using x = fromArray(ctx, values, [1, 1, rows, dim]);
    x.requiresGrad = true;
    using out = rotary.encode(x, [{ start: 100, length: rows, step: 1 }]);
    expect(maxDifference(await out.read(), rotateReference(values))).toBeLessThan(1e-6);
    using seed = fromArray(ctx, weights, x.shape);
    out.backward(seed);
    const weightedSum = (inputValues: readonly number[]) =>
      rotateReference(inputValues).reduce((sum, value, i) => sum + value * weights[i]!, 0);
    expect(maxDifference(await x.grad!.read(), numericalDerivative(weightedSum, values))).toBeLessThan(1e-6);
  }));

describe("a scaling that depends on the length", () => {
  const [length, embedDim] = [11, 8];
  const dynamic = (originalLength: number) => ropeScaling.dynamicNtk({ factor: 4, originalLength });

  /** Runs attention over ranks with zigzag placement. The length on every rank is that of the whole sequence. */
  async function runAttention(shards: number, scaling?: RopeScaling): Promise<number[]> {
    const [out] = await onMesh({ sp: shards }, async (ctx) => {
      const positions = new RotaryEmbedding(4, scaling && { scaling });
      const options = { placement: "zigzag", length } as const;
      using attn = new MultiAxisAttention(ctx, {
        ...{ embedDim, numHeads: 2, attentionAxis: 1, causal: true, backend: "ring", positions },
        ...{ placement: "zigzag", sequenceLength: length },
      });
      using fullInput = fromArray(ctx, generateNumbers(length * embedDim, 3), [1, length, embedDim]);
      using x = shard(ctx, fullInput, 1, options);
      using out = attn.forward(x);
      using fullOutput = unshard(ctx, out, 1, options);
      positions.dispose();
      return Array.from(await fullOutput.read());
    });
    return out!;
  }

  test("uses the length of the whole sequence on every mesh", async () => {
    const expected = await runAttention(1, dynamic(4));
    for (const shards of [2, 3])
      expect(maxDifference(await runAttention(shards, dynamic(4)), expected)).toBeLessThan(5e-6);
    expect(maxDifference(await runAttention(2, dynamic(length)), await runAttention(1))).toBeLessThan(5e-6);
    expect(maxDifference(expected, await runAttention(1))).toBeGreaterThan(1e-3);
  });

  test("uses different tables for two lengths, and requires a length", () =>
    onOneRank(async (ctx) => {
      using rotary = new RotaryEmbedding(4, { scaling: dynamic(2) });
      using x = fromArray(ctx, generateNumbers(8, 1), [1, 1, 2, 4]);
      const spans = [{ start: 5, length: 2, step: 1 }];
      using shortEncoding = rotary.encode(x, spans, 8);
      using longEncoding = rotary.encode(x, spans, 800);
      using repeatedEncoding = rotary.encode(x, spans, 8);
      expect(Array.from(await repeatedEncoding.read())).toEqual(Array.from(await shortEncoding.read()));
      expect(maxDifference(await longEncoding.read(), await shortEncoding.read())).toBeGreaterThan(1e-3);
      expect(() => rotary.encode(x, spans)).toThrow(/sequenceLength: expected an integer ≥ 0, received undefined/);
    }));
});

test("unknown and contradictory options are rejected", () => {
  const yarn = { factor: 4, originalLength: 64 };
  for (const createInvalid of [
    () => ropeScaling.linear({ factor: 0.5 }),
    () => ropeScaling.linear({} as never),
    () => ropeScaling.ntk({ factor: Number.NaN }),
    () => ropeScaling.dynamicNtk({ factor: 2 } as never),
    () => ropeScaling.yarn({ ...yarn, originalLength: 1.5 }),
    () => ropeScaling.yarn({ ...yarn, beta_fast: 32 } as never),
    () => ropeScaling.llama3({ ...yarn, lowFreqFactor: 4, highFreqFactor: 4 }),
    () => new RotaryEmbedding(8, { scaling: "yarn" as never }),
  ]) {
    expect(createInvalid).toThrow(OptionError);
  }
});
