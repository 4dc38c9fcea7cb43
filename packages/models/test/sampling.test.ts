import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type SamplingSettings, sampleToken } from "../src/generate/sampling.ts";

const settings = (given: Partial<SamplingSettings>): SamplingSettings => ({
  doSample: true,
  temperature: 1,
  topK: 0,
  topP: 1,
  repetitionPenalty: 1,
  ...given,
});

/** Probabilities by their definition: the penalty, the temperature, top-k, top-p, in this order, in float64. */
function probabilities(logits: readonly number[], before: readonly number[], given: SamplingSettings): number[] {
  const { temperature, topK, topP, repetitionPenalty } = given;
  const penalized = logits.map((logit, i) => {
    if (!before.includes(i)) return logit;
    return Math.fround(logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty);
  });
  const order = penalized.map((_, i) => i).sort((a, b) => penalized[b]! - penalized[a]! || a - b);
  const weights = penalized.map((logit) => Math.exp((logit - Math.max(...penalized)) / temperature));
  const kth = penalized[order[Math.min(topK || logits.length, logits.length) - 1]!]!;
  const within = order.filter((i) => penalized[i]! >= kth);
  const total = within.reduce((sum, i) => sum + weights[i]!, 0);
  let mass = 0;
  const kept = within.filter((i) => {
    // The sum reaches the total before probabilities below rounding, which a topP of 1 keeps all the same.
    const isKept = topP === 1 || mass < topP * total;
    mass += weights[i]!;
    return isKept;
  });
  const sum = kept.reduce((all, i) => all + weights[i]!, 0);
  return logits.map((_, i) => (kept.includes(i) ? weights[i]! / sum : 0));
}

/** How often each token is drawn by `count` numbers that lie evenly in [0, 1). */
function frequencies(logits: readonly number[], before: readonly number[], given: SamplingSettings, count: number) {
  const drawn = logits.map(() => 0);
  for (let i = 0; i < count; i++) {
    drawn[sampleToken(Float32Array.from(logits), before, given, (i + 0.5) / count).token]! += 1 / count;
  }
  return drawn;
}

const logits = [2, 1, 0.5, 0.5, -1, -3, 1.75];

describe("tokens are drawn by their probabilities", () => {
  test.each([
    ["of all", {}, []],
    ["with a temperature", { temperature: 0.5 }, []],
    ["of the four largest", { topK: 4 }, []],
    ["of the three largest, two of which tie at the end", { topK: 5 }, []],
    ["of the most probable that add up to 0.8", { topP: 0.8 }, []],
    ["of the most probable alone", { topP: 0.01 }, []],
    ["with all of it", { temperature: 1.5, topK: 6, topP: 0.9, repetitionPenalty: 1.3 }, [0, 4, 4]],
  ] as const)("%s", (_, given, before) => {
    const expected = probabilities(logits, before, settings(given));
    const drawn = frequencies(logits, before, settings(given), 20_000);
    // Numbers that lie evenly give each token to one number less or more.
    for (const [token, probability] of expected.entries())
      expect(Math.abs(drawn[token]! - probability)).toBeLessThan(2e-4);
  });

  test("and their logarithm is returned", () => {
    const given = settings({ topK: 3, temperature: 0.7 });
    const expected = probabilities(logits, [], given);
    for (const uniform of [0, 0.3, 0.6, 0.999]) {
      const { token, logProbability } = sampleToken(Float32Array.from(logits), [], given, uniform);
      expect(logProbability).toBeCloseTo(Math.log(expected[token]!), 10);
    }
  });

  test("for any logits and settings, of tokens that may be drawn", () => {
    // Logits that differ do so by more than rounding.
    const eighths = fc.integer({ min: -160, max: 160 }).map((k) => k / 8);
    const numbers = fc.array(eighths, { minLength: 1, maxLength: 40 });
    const any = fc.record({
      doSample: fc.constant(true),
      temperature: fc.double({ min: 0.1, max: 3, noNaN: true }),
      topK: fc.nat(50),
      topP: fc.double({ min: 0.01, max: 1, noNaN: true }),
      repetitionPenalty: fc.constantFrom(0.5, 1, 2),
    });
    fc.assert(
      fc.property(numbers, any, fc.double({ min: 0, max: 0.999_999, noNaN: true }), (values, given, uniform) => {
        const { token } = sampleToken(Float32Array.from(values), [0], given, uniform);
        const largest = Math.max(...probabilities(values, [0], given));
        expect(
          probabilities(values, [0], { ...given, topP: Math.min(1, given.topP + 1e-9) })[token]! / largest,
        ).toBeGreaterThan(0);
      }),
    );
  });
});

test("without sampling, the first of the largest logits after the repetition penalty", () => {
  const greedy = settings({ doSample: false });
  expect(sampleToken(Float32Array.of(1, 3, 3), [], greedy, 0.9).token).toBe(1);
  expect(sampleToken(Float32Array.of(1, 3, 2), [1], { ...greedy, repetitionPenalty: 2 }, 0).token).toBe(2);
  expect(sampleToken(Float32Array.of(-1, -2), [0], { ...greedy, repetitionPenalty: 3 }, 0).token).toBe(1);
});

test("logits that are NaN are an error", () => {
  expect(() => sampleToken(Float32Array.of(1, Number.NaN), [], settings({}), 0)).toThrow(
    /generate: expected logits without NaN, received NaN for token 1; .*bfloat16/,
  );
});
