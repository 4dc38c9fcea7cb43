import type { SampledToken, SamplingSettings } from "../../src/generate/sampling.ts";

/** Chooses a token by sorting the weights of all tokens, with the same sums as `sampleToken` in the same order. */
// oxlint-disable-next-line max-params -- as sampleToken
export function sampleBySorting(
  logits: Float32Array,
  previousTokens: readonly number[],
  { temperature, topK, topP, minP, repetitionPenalty }: SamplingSettings,
  uniform: number,
): SampledToken {
  const penalizedLogits = logits.map((logit, token) => {
    if (repetitionPenalty === 1 || !previousTokens.includes(token)) return logit;
    return logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty;
  });
  const maxLogit = penalizedLogits.reduce((max, each) => Math.max(max, each), -Infinity);
  const weights = Float64Array.from(penalizedLogits, (logit) => Math.exp((logit - maxLogit) / temperature));
  const dropUnless = (keep: (weight: number) => boolean): void => {
    for (let i = 0; i < weights.length; i++) if (!keep(weights[i]!)) weights[i] = 0;
  };
  const sortWeights = (): Float64Array => weights.toSorted().reverse();
  if (topK > 0 && topK < weights.length) {
    const threshold = sortWeights()[topK - 1]!;
    dropUnless((weight) => weight >= threshold);
  }
  if (topP < 1) {
    const sortedWeights = sortWeights();
    const minSum = topP * sortedWeights.reduce((sum, each) => sum + each, 0);
    const keptWeights: number[] = [];
    for (let sum = 0; keptWeights.length === 0 || sum < minSum; sum += keptWeights.at(-1)!)
      keptWeights.push(sortedWeights[keptWeights.length]!);
    dropUnless((weight) => {
      const index = keptWeights.indexOf(weight);
      if (index >= 0) keptWeights.splice(index, 1);
      return index >= 0;
    });
  }
  dropUnless((weight) => weight >= minP);
  const total = weights.reduce((sum, each) => sum + each, 0);
  let [remainingWeight, token] = [uniform * total, 0];
  for (let i = 0; i < weights.length && remainingWeight >= 0; i++) {
    if (weights[i] === 0) continue;
    token = i;
    remainingWeight -= weights[i]!;
  }
  return { token, logProbability: Math.log(weights[token]! / total) };
}
