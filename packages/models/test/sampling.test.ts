import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type SamplingSettings, sampleToken } from "../src/generate/sampling.ts";

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
