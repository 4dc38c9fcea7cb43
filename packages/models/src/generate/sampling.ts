import { MosaicError } from "@mosaic/core";

/** Settings for choosing a token. */
export interface SamplingSettings {
  /** Whether to sample; false: the most probable token is chosen. */
  readonly doSample: boolean;
  readonly temperature: number;
  /** Sample from this number of most probable tokens; 0: all. */
  readonly topK: number;
  /** Sample from the most probable tokens whose probabilities add up to this value. */
  readonly topP: number;
  /** Sample from tokens whose probability is at least this fraction of the largest. */
  readonly minP: number;
  readonly repetitionPenalty: number;
}

/** A token, and the logarithm of its probability among the tokens it was chosen from. */
export interface SampledToken {
  readonly token: number;
  readonly logProbability: number;
}

/**
 * Chooses a token by its logits [V], which are modified: the repetition penalty of the tokens so far (Keskar et al.
 * 2019), temperature, top-k, top-p (Holtzman et al. 2020) and min-p (Nguyen et al. 2025), in the order of transformers.
 * `uniform` in [0, 1) is the random number; the same arguments give the same token.
 *
 * @throws MosaicError if a logit is NaN, or if the largest logit is infinite.
 */
// oxlint-disable-next-line max-params -- the numbers, what they follow, how, and the random one
export function sampleToken(
  logits: Float32Array,
  previousTokens: Iterable<number>,
  settings: SamplingSettings,
  uniform: number,
): SampledToken {
  const { doSample, temperature, topK, topP, minP, repetitionPenalty } = settings;
  penalizeRepetition(logits, previousTokens, repetitionPenalty);
  const bestToken = argmax(logits);
  if (!doSample) return { token: bestToken, logProbability: -Math.log(sumWeights(logits, logits[bestToken]!, 1)) };
  const weights = Float64Array.from(logits, (logit) => Math.exp((logit - logits[bestToken]!) / temperature));
  if (topK > 0 && topK < weights.length) keepTopK(weights, topK);
  if (topP < 1) keepTopP(weights, topP);
  // The largest weight is 1.
  if (minP > 0) for (let i = 0; i < weights.length; i++) if (weights[i]! < minP) weights[i] = 0;
  return drawToken(weights, uniform);
}

/** Divides the logits of tokens that occurred by the penalty if they are positive, otherwise multiplies them by it. */
function penalizeRepetition(logits: Float32Array, previousTokens: Iterable<number>, repetitionPenalty: number): void {
  if (repetitionPenalty === 1) return;
  for (const token of new Set(previousTokens)) {
    const logit = logits[token]!;
    logits[token] = logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty;
  }
}

/**
 * Returns the index of the largest logit; the first of several. Throws a MosaicError unless the largest logit is
 * finite, because probabilities are computed from differences from it.
 */
function argmax(logits: Float32Array): number {
  let bestIndex = 0;
  for (let i = 0; i < logits.length; i++) {
    if (Number.isNaN(logits[i])) throw createLogitError("logits without NaN", logits, i);
    if (logits[i]! > logits[bestIndex]!) bestIndex = i;
  }
  if (Number.isFinite(logits[bestIndex])) return bestIndex;
  throw createLogitError("a finite largest logit", logits, bestIndex);
}

function createLogitError(expected: string, logits: Float32Array, token: number): MosaicError {
  return new MosaicError({
    where: "generate",
    expected,
    received: `${logits[token]!} for token ${token}`,
    remedy: "check the weights, or use bfloat16: float16 overflows in some models",
  });
}

function sumWeights(logits: Float32Array, maxLogit: number, temperature: number): number {
  let sum = 0;
  for (const logit of logits) sum += Math.exp((logit - maxLogit) / temperature);
  return sum;
}

/** Sets all weights below the k-th largest to 0. Ties with it are kept, as in transformers. */
function keepTopK(weights: Float64Array, topK: number): void {
  const threshold = weights.toSorted()[weights.length - topK]!;
  for (let i = 0; i < weights.length; i++) if (weights[i]! < threshold) weights[i] = 0;
}

/**
 * Sets a weight to 0 if the larger ones already add up to topP. Of equal weights, those with the larger ids are
 * dropped.
 */
function keepTopP(weights: Float64Array, topP: number): void {
  const sortedWeights = weights.toSorted().reverse();
  const minSum = topP * sortedWeights.reduce((sum, each) => sum + each, 0);
  let count = 0;
  for (let sum = 0; count < sortedWeights.length && (count === 0 || sum < minSum); count++)
    sum += sortedWeights[count]!;
  const threshold = sortedWeights[count - 1]!;
  let numKeptTies = count - sortedWeights.indexOf(threshold);
  for (let i = 0; i < weights.length; i++) {
    const weight = weights[i]!;
    if (weight < threshold || (weight === threshold && --numKeptTies < 0)) weights[i] = 0;
  }
}

/** Returns the token at which the cumulative sum of weights exceeds `uniform` · total. */
function drawToken(weights: Float64Array, uniform: number): SampledToken {
  const total = weights.reduce((sum, each) => sum + each, 0);
  let [remainingWeight, token] = [uniform * total, 0];
  for (let i = 0; i < weights.length; i++) {
    if (weights[i] === 0) continue;
    token = i;
    remainingWeight -= weights[i]!;
    if (remainingWeight < 0) break;
  }
  return { token, logProbability: Math.log(weights[token]! / total) };
}
