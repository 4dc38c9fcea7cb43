import { MosaicError } from "@mosaic/core";
import { selectKthLargest, sortDescending } from "./float-order.ts";

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
  const { doSample, temperature, repetitionPenalty } = settings;
  penalizeRepetition(logits, previousTokens, repetitionPenalty);
  const bestToken = argmax(logits);
  const maxLogit = logits[bestToken]!;
  if (!doSample) return { token: bestToken, logProbability: -Math.log(sumWeights(logits, maxLogit)) };
  const distribution: Distribution = { logits, maxLogit, temperature };
  return drawToken(selectCandidates(distribution, settings), uniform);
}

/** The distribution of all tokens: a logit has the weight exp((logit − maxLogit) / temperature), its probability · Z. */
interface Distribution {
  readonly logits: Float32Array;
  readonly maxLogit: number;
  readonly temperature: number;
}

/** The tokens that may be chosen, in ascending order, and their weights, which are above 0. */
interface Candidates {
  readonly tokens: Uint32Array;
  readonly weights: Float64Array;
}

/** The smallest weight of a selection. Only the first `numTies` tokens of this weight belong to it. */
interface WeightThreshold {
  readonly weight: number;
  readonly numTies: number;
}

function selectCandidates(distribution: Distribution, { topK, topP, minP }: SamplingSettings): Candidates {
  const { logits } = distribution;
  if (topK > 0 && topK < logits.length) {
    const candidates = collectTopK(distribution, topK);
    return keepMinP(topP < 1 ? keepTopP(candidates, topP) : candidates, minP);
  }
  if (topP < 1) return keepMinP(collectTopP(distribution, topP), minP);
  return collectMinP(distribution, minP);
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

/** Weights below this value may be denormal. They are rounded to fewer bits. */
const MIN_PRECISE_WEIGHT = 1e-300;

/** Returns the sum of the weights of all tokens at temperature 1. */
function sumWeights(logits: Float32Array, maxLogit: number): number {
  let sum = 0;
  for (let i = 0; i < logits.length; i++) sum += Math.exp(logits[i]! - maxLogit);
  return sum;
}

/** Collects the k most probable tokens. Ties with the k-th are kept, as in transformers. */
function collectTopK(distribution: Distribution, topK: number): Candidates {
  const thresholdLogit = selectKthLargest(distribution.logits, topK);
  return collectDownTo(distribution, thresholdLogit, { numTies: Infinity });
}

/** Collects the tokens of `keepTopP` from all tokens. */
function collectTopP(distribution: Distribution, topP: number): Candidates {
  const { logits, maxLogit, temperature } = distribution;
  const sortedLogits = sortDescending(logits);
  const sortedWeights = new Float64Array(sortedLogits.length);
  let sum = 0;
  for (let i = 0; i < sortedLogits.length; i++) {
    const weight = Math.exp((sortedLogits[i]! - maxLogit) / temperature);
    // This weight and all later ones are too small to change the sum.
    if (sum + weight === sum) break;
    sum += weight;
    sortedWeights[i] = weight;
  }
  const { count, numTies } = measureTopP(sortedWeights, topP);
  return collectDownTo(distribution, sortedLogits[count - 1]!, { numTies });
}

/** Collects the tokens whose weight is at least minP, the largest weight being 1. */
function collectMinP(distribution: Distribution, minP: number): Candidates {
  // The margin exceeds the rounding errors of the logarithm and of the weights.
  const minDifference = minP < MIN_PRECISE_WEIGHT ? -Infinity : distribution.temperature * (Math.log(minP) - 1e-9);
  return collect(distribution, minDifference, (weight) => weight >= minP);
}

/** Collects the tokens down to a logit's weight, of which the first `numTies` tokens are kept. */
function collectDownTo(
  distribution: Distribution,
  thresholdLogit: number,
  { numTies }: Pick<WeightThreshold, "numTies">,
): Candidates {
  const { maxLogit, temperature } = distribution;
  const difference = thresholdLogit - maxLogit;
  const weight = Math.exp(difference / temperature);
  // Smaller logits may have the same weight after rounding, but only within this margin.
  const minDifference = weight < MIN_PRECISE_WEIGHT ? -Infinity : difference - 1e-12 * temperature;
  return collect(distribution, minDifference, createFilter({ weight, numTies }));
}

/**
 * Collects the tokens whose logit is at least maxLogit + `minDifference`, and whose weight is above 0 and satisfies `keep`.
 * Other weights are not computed.
 */
function collect(
  { logits, maxLogit, temperature }: Distribution,
  minDifference: number,
  keep: (weight: number) => boolean,
): Candidates {
  let maxCount = 0;
  for (let i = 0; i < logits.length; i++) if (logits[i]! - maxLogit >= minDifference) maxCount++;
  const tokens = new Uint32Array(maxCount);
  const weights = new Float64Array(maxCount);
  let count = 0;
  for (let i = 0; i < logits.length; i++) {
    const difference = logits[i]! - maxLogit;
    if (difference < minDifference) continue;
    const weight = Math.exp(difference / temperature);
    if (weight === 0 || !keep(weight)) continue;
    tokens[count] = i;
    weights[count++] = weight;
  }
  return { tokens: tokens.subarray(0, count), weights: weights.subarray(0, count) };
}

/** Keeps the most probable tokens whose weights add up to topP. Of equal weights, those with the larger ids are dropped. */
function keepTopP(candidates: Candidates, topP: number): Candidates {
  const sortedWeights = candidates.weights.toSorted().reverse();
  const { count, numTies } = measureTopP(sortedWeights, topP);
  return filterCandidates(candidates, createFilter({ weight: sortedWeights[count - 1]!, numTies }));
}

/** Returns the number of the largest weights that add up to topP, and how many of them equal the last one. */
function measureTopP(sortedWeights: Float64Array, topP: number): { readonly count: number; readonly numTies: number } {
  let total = 0;
  for (let i = 0; i < sortedWeights.length; i++) total += sortedWeights[i]!;
  const minSum = topP * total;
  let count = 0;
  for (let sum = 0; count < sortedWeights.length && (count === 0 || sum < minSum); count++)
    sum += sortedWeights[count]!;
  return { count, numTies: count - sortedWeights.indexOf(sortedWeights[count - 1]!) };
}

function keepMinP(candidates: Candidates, minP: number): Candidates {
  return minP > 0 ? filterCandidates(candidates, (weight) => weight >= minP) : candidates;
}

/** Returns a function that is called once for each token in ascending order, and returns whether to keep it. */
function createFilter({ weight: threshold, numTies }: WeightThreshold): (weight: number) => boolean {
  let numRemainingTies = numTies;
  return (weight) => weight > threshold || (weight === threshold && --numRemainingTies >= 0);
}

function filterCandidates({ tokens, weights }: Candidates, keep: (weight: number) => boolean): Candidates {
  const isKept = Uint8Array.from(weights, (weight) => Number(keep(weight)));
  return { tokens: tokens.filter((_, i) => isKept[i] === 1), weights: weights.filter((_, i) => isKept[i] === 1) };
}

/** Returns the token at which the cumulative sum of weights exceeds `uniform` · total. */
function drawToken({ tokens, weights }: Candidates, uniform: number): SampledToken {
  let total = 0;
  for (let i = 0; i < weights.length; i++) total += weights[i]!;
  let [remainingWeight, last] = [uniform * total, 0];
  for (let i = 0; i < weights.length; i++) {
    last = i;
    remainingWeight -= weights[i]!;
    if (remainingWeight < 0) break;
  }
  return { token: tokens[last]!, logProbability: Math.log(weights[last]! / total) };
}
