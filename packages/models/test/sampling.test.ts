import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { selectKthLargest, sortDescending } from "../src/generate/float-order.ts";
import { type SamplingSettings, sampleToken } from "../src/generate/sampling.ts";
import { sampleBySorting } from "./reference/sorted-sampling.ts";

const createSettings = (samplingSettings: Partial<SamplingSettings>): SamplingSettings => ({
  doSample: true,
  temperature: 1,
  topK: 0,
  topP: 1,
  minP: 0,
  repetitionPenalty: 1,
  ...samplingSettings,
});

/**
 * Computes the probabilities by definition: penalty, temperature, top-k, top-p and min-p, in this order, in float64.
 */
function computeProbabilities(
  logits: readonly number[],
  previousTokens: readonly number[],
  samplingSettings: SamplingSettings,
): number[] {
  const { temperature, topK, topP, minP, repetitionPenalty } = samplingSettings;
  const penalizedLogits = logits.map((logit, i) => {
    if (!previousTokens.includes(i)) return logit;
    return Math.fround(logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty);
  });
  const order = penalizedLogits.map((_, i) => i).sort((a, b) => penalizedLogits[b]! - penalizedLogits[a]! || a - b);
  const weights = penalizedLogits.map((logit) => Math.exp((logit - Math.max(...penalizedLogits)) / temperature));
  const topKThreshold = penalizedLogits[order[Math.min(topK || logits.length, logits.length) - 1]!]!;
  const topKTokens = order.filter((i) => penalizedLogits[i]! >= topKThreshold);
  const total = topKTokens.reduce((sum, i) => sum + weights[i]!, 0);
  let cumulativeWeight = 0;
  const topPTokens = topKTokens.filter((i) => {
    // The sum reaches the total before it includes probabilities below rounding, which are kept with a topP of 1.
    const isKept = topP === 1 || cumulativeWeight < topP * total;
    cumulativeWeight += weights[i]!;
    return isKept;
  });
  const largestWeight = Math.max(...topPTokens.map((i) => weights[i]!));
  const minPTokens = topPTokens.filter((i) => weights[i]! >= minP * largestWeight);
  const sum = minPTokens.reduce((partialSum, i) => partialSum + weights[i]!, 0);
  return logits.map((_, i) => (minPTokens.includes(i) ? weights[i]! / sum : 0));
}

/** Returns the frequency of each token for `count` numbers that are evenly spaced in [0, 1). */
function measureFrequencies(
  logits: readonly number[],
  previousTokens: readonly number[],
  samplingSettings: SamplingSettings,
  count: number,
) {
  const drawCounts = logits.map(() => 0);
  for (let i = 0; i < count; i++) {
    drawCounts[sampleToken(Float32Array.from(logits), previousTokens, samplingSettings, (i + 0.5) / count).token]! +=
      1 / count;
  }
  return drawCounts;
}

const logits = [2, 1, 0.5, 0.5, -1, -3, 1.75];

describe("sampleToken", () => {
  test.each([
    ["all tokens", {}, []],
    ["a temperature", { temperature: 0.5 }, []],
    ["the four largest logits", { topK: 4 }, []],
    ["the five largest logits, with a tie at the end", { topK: 5 }, []],
    ["the most probable tokens up to a sum of 0.8", { topP: 0.8 }, []],
    ["the most probable token alone", { topP: 0.01 }, []],
    ["tokens with at least a third of the largest probability", { minP: 0.34 }, []],
    ["tokens with the largest probability", { minP: 1 }, []],
    ["all settings combined", { temperature: 1.5, topK: 6, topP: 0.9, minP: 0.2, repetitionPenalty: 1.3 }, [0, 4, 4]],
  ] as const)("draws tokens in proportion to their probabilities: %s", (_, samplingSettings, previousTokens) => {
    const expected = computeProbabilities(logits, previousTokens, createSettings(samplingSettings));
    const observedFrequencies = measureFrequencies(logits, previousTokens, createSettings(samplingSettings), 20_000);
    // With evenly spaced numbers, the count of each token deviates by at most one.
    for (const [token, probability] of expected.entries())
      expect(Math.abs(observedFrequencies[token]! - probability)).toBeLessThan(2e-4);
  });

  test("returns the logarithm of the probability", () => {
    const samplingSettings = createSettings({ topK: 3, temperature: 0.7 });
    const expected = computeProbabilities(logits, [], samplingSettings);
    for (const uniform of [0, 0.3, 0.6, 0.999]) {
      const { token, logProbability } = sampleToken(Float32Array.from(logits), [], samplingSettings, uniform);
      expect(logProbability).toBeCloseTo(Math.log(expected[token]!), 10);
    }
  });

  test("draws only tokens of nonzero probability, for any logits and settings", () => {
    // Distinct logits differ by more than rounding errors.
    const logitArbitrary = fc.integer({ min: -160, max: 160 }).map((k) => k / 8);
    const numbers = fc.array(logitArbitrary, { minLength: 1, maxLength: 40 });
    const settingsArbitrary = fc.record({
      doSample: fc.constant(true),
      temperature: fc.double({ min: 0.1, max: 3, noNaN: true }),
      topK: fc.nat(50),
      topP: fc.double({ min: 0.01, max: 1, noNaN: true }),
      minP: fc.constantFrom(0, 0.05, 0.5),
      repetitionPenalty: fc.constantFrom(0.5, 1, 2),
    });
    fc.assert(
      fc.property(
        numbers,
        settingsArbitrary,
        fc.double({ min: 0, max: 0.999_999, noNaN: true }),
        (values, samplingSettings, uniform) => {
          const { token } = sampleToken(Float32Array.from(values), [0], samplingSettings, uniform);
          const maxProbability = Math.max(...computeProbabilities(values, [0], samplingSettings));
          expect(
            computeProbabilities(values, [0], { ...samplingSettings, topP: Math.min(1, samplingSettings.topP + 1e-9) })[
              token
            ]! / maxProbability,
          ).toBeGreaterThan(0);
        },
      ),
    );
  });
});

describe("sampleToken returns the same token and probability as a sort of all weights", () => {
  const float = fc.float({ noNaN: true, noDefaultInfinity: true });
  const logitArbitraries = {
    "with ties": fc.integer({ min: -3, max: 3 }),
    "with -Infinity, -0 and very small weights": fc.oneof(
      fc.constantFrom(-Infinity, 0, -0, -700, -740, -745),
      fc.float({ min: -760, max: 5, noNaN: true }),
    ),
    "of the size of a model's": fc.float({ min: -20, max: 20, noNaN: true }),
    "of any size": float,
  };
  const settingsArbitrary = fc.record({
    doSample: fc.constant(true),
    temperature: fc.oneof(
      fc.double({ min: 0.1, max: 3, noNaN: true }),
      fc.constantFrom(1, 1e-300, 1e-3, 1e9, 1e12, 1e16, 1e300),
    ),
    topK: fc.oneof(fc.constant(0), fc.nat(130), fc.nat(4), fc.nat(1200)),
    topP: fc.oneof(
      fc.constant(1),
      fc.double({ min: 0, max: 1, noNaN: true }),
      fc.constantFrom(Number.MIN_VALUE, 1e-9, 0.25, 0.5, 0.75, 1 - 2 ** -53),
    ),
    minP: fc.oneof(
      fc.constant(0),
      fc.double({ min: 0, max: 1, noNaN: true }),
      fc.constantFrom(Number.MIN_VALUE, 1e-310),
    ),
    repetitionPenalty: fc.constantFrom(0.5, 1, 1.3),
  });
  const uniform = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });

  test.each(Object.entries(logitArbitraries))("for logits %s", (_, logit) => {
    // Repetitions are ties, and make some arrays long enough to be sorted by radix.
    const values = fc.tuple(logit, fc.array<number>(logit, { maxLength: 120 }), fc.constantFrom(1, 1, 9));
    const previousTokens = fc.array(fc.nat(5), { maxLength: 3 });
    fc.assert(
      fc.property(
        values,
        previousTokens,
        settingsArbitrary,
        uniform,
        ([first, rest, repetitions], previous, settings, number) => {
          const copies = Array.from({ length: repetitions }, () => rest);
          const all = Float32Array.of(first === -Infinity ? 0 : first, ...copies.flat());
          const previousOnes = previous.filter((token) => token < all.length);
          const expected = sampleBySorting(all.slice(), previousOnes, settings, number);
          fc.pre(Number.isFinite(expected.logProbability));
          expect(sampleToken(all.slice(), previousOnes, settings, number)).toEqual(expected);
        },
      ),
      { numRuns: 3000 },
    );
  });

  test("for a large vocabulary", () => {
    const numTokens = 8000;
    const generateLogits = (seed: number): Float32Array => {
      let state = seed;
      return Float32Array.from({ length: numTokens }, () => {
        state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
        return 4 * Math.log(1e-6 + state / 2 ** 32);
      });
    };
    for (const samplingSettings of [{}, { topK: 50 }, { topK: 7999, topP: 0.7 }, { topP: 0.9 }, { minP: 0.01 }]) {
      for (let step = 0; step < 6; step++) {
        const all = createSettings({ temperature: 0.9, ...samplingSettings });
        const number = (step + 0.5) / 6;
        const expected = sampleBySorting(generateLogits(step), [], all, number);
        expect(sampleToken(generateLogits(step), [], all, number)).toEqual(expected);
      }
    }
  });
});

test("values are sorted and selected in the order of float32, by radix and by comparisons", () => {
  const anyFloat = fc.oneof(fc.float({ noNaN: true }), fc.constantFrom(0, -0, Infinity, -Infinity), fc.nat(3));
  fc.assert(
    fc.property(
      fc.array(anyFloat, { minLength: 1, maxLength: 60 }),
      fc.constantFrom(1, 20),
      fc.nat(),
      (some, n, number) => {
        const values = Float32Array.from(Array.from({ length: n }, () => some).flat());
        // Subarrays, such as the logits of one text of a batch.
        const subarray = new Float32Array([Number.NaN, ...values]).subarray(1);
        const sorted = values.toSorted().reverse();
        expect(sortDescending(subarray)).toEqual(sorted);
        const index = number % values.length;
        expect(selectKthLargest(subarray, index + 1)).toBe(sorted[index]);
        expect(subarray).toEqual(values);
      },
    ),
    { numRuns: 300 },
  );
});

test("sampleToken takes less than half the time of a sort of the vocabulary", () => {
  const numTokens = 128_256;
  const vocabularyLogits = Float32Array.from({ length: numTokens }, (_, i) => 4 * Math.sin(i * i));
  const measureBest = (body: () => unknown): number => {
    const times = Array.from({ length: 12 }, () => {
      const start = performance.now();
      body();
      return performance.now() - start;
    });
    return Math.min(...times);
  };
  const sortTime = measureBest(() => Float64Array.from(vocabularyLogits).sort());
  for (const samplingSettings of [{ topK: 50 }, { topK: 50, topP: 0.9 }, { minP: 0.1 }]) {
    const all = createSettings(samplingSettings);
    expect(measureBest(() => sampleToken(vocabularyLogits.slice(), [], all, 0.5))).toBeLessThan(sortTime / 2);
  }
});

test("greedy decoding takes the first of the largest logits after the repetition penalty", () => {
  const greedySettings = createSettings({ doSample: false });
  expect(sampleToken(Float32Array.of(1, 3, 3), [], greedySettings, 0.9).token).toBe(1);
  expect(sampleToken(Float32Array.of(1, 3, 2), [1], { ...greedySettings, repetitionPenalty: 2 }, 0).token).toBe(2);
  expect(sampleToken(Float32Array.of(-1, -2), [0], { ...greedySettings, repetitionPenalty: 3 }, 0).token).toBe(1);
});

test.each([{ doSample: true }, { doSample: false }])("an infinite largest logit is rejected, %o", (settings) => {
  const sample = (...logits: number[]) => sampleToken(Float32Array.from(logits), [], createSettings(settings), 0);
  expect(() => sample(1, Infinity, 2)).toThrow(
    /generate: expected a finite largest logit, received Infinity for token 1; .*bfloat16/,
  );
  expect(() => sample(-Infinity, -Infinity)).toThrow(/received -Infinity for token 0/);
  expect(sample(-Infinity, 3)).toEqual({ token: 1, logProbability: expect.closeTo(0) as number });
});

test("NaN logits are rejected", () => {
  expect(() => sampleToken(Float32Array.of(1, Number.NaN), [], createSettings({}), 0)).toThrow(
    /generate: expected logits without NaN, received NaN for token 1; .*bfloat16/,
  );
});
