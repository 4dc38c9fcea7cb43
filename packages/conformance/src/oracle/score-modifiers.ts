import type { AttentionDropout, HeadOrigin } from "@mosaic/core";

/** Modifiers of plain attention, by their definitions. */
export interface OracleModifiers {
  /** s ← softcap · tanh(s / softcap), after the scale. */
  readonly softcap?: number;
  /** Slope of each query head: s ← s − slope · |query − key|. */
  readonly slopes?: readonly number[];
  readonly dropout?: AttentionDropout;
  /** Logit of each query head that the softmax includes in addition to the scores. */
  readonly sinks?: readonly number[];
  /** Indices of the first sample and of the first query head, on which slopes and dropout depend. Default: 0. */
  readonly origin?: HeadOrigin;
}

/** A pair of a query and a key. */
export interface Pair {
  readonly sample: number;
  readonly head: number;
  readonly query: number;
  readonly key: number;
}

/** Returns the modified score, and its derivative with respect to the unmodified score. */
export function modifyScore(
  { softcap, slopes, origin }: OracleModifiers,
  score: number,
  { head, query, key }: Pair,
): { readonly score: number; readonly derivative: number } {
  const t = softcap === undefined ? 0 : Math.tanh(score / softcap);
  const cappedScore = softcap === undefined ? score : softcap * t;
  const penalty = slopes ? slopes[(origin?.head ?? 0) + head]! * Math.abs(query - key) : 0;
  return { score: cappedScore - penalty, derivative: 1 - t * t };
}

/** Returns a function that computes a pair's dropout factor: 0 or 1 / (1 − probability), or 1 without dropout. */
export function createWeightFactorFunction({
  dropout,
  origin = { batch: 0, head: 0 },
}: OracleModifiers): (pair: Pair) => number {
  if (!dropout) return () => 1;
  const { seed, stream, batchOffset } = dropout;
  // Rounded to float32, as for kernels.
  const probability = Math.fround(dropout.probability);
  const dropLimit = probability * 2 ** 24;
  const splitWords = (x: number): [number, number] => [x >>> 0, Math.floor(x / 2 ** 32)];
  const [firstWord, secondWord] = philox([...splitWords(stream), 0, 0], splitWords(seed));
  return ({ sample, head, query, key }) => {
    const counter = [Math.floor(key / 4), query, batchOffset + origin.batch + sample, origin.head + head];
    const words = philox(counter, [firstWord!, secondWord!]);
    return words[key % 4]! >>> 8 < dropLimit ? 0 : 1 / (1 - probability);
  };
}

/**
 * Computes Philox4x32-10 (Salmon et al. 2011) of a four-word counter and a key. All words are unsigned 32-bit integers.
 *
 * @example
 * ```ts
 * import { philox } from "@mosaic/conformance";
 * philox([0, 0, 0, 0], [0, 0]); // => [1713891541, 3781805453, 3159862348, 2600524760]
 * ```
 */
export function philox(counter: readonly number[], key: readonly number[]): number[] {
  let [c0, c1, c2, c3] = counter as [number, number, number, number];
  let [k0, k1] = key as [number, number];
  for (let round = 0; round < 10; round++) {
    const [high0, high1] = [multiplyHigh(0xd2511f53, c0), multiplyHigh(0xcd9e8d57, c2)];
    const [low0, low1] = [Math.imul(0xd2511f53, c0) >>> 0, Math.imul(0xcd9e8d57, c2) >>> 0];
    [c0, c1, c2, c3] = [(high1 ^ c1 ^ k0) >>> 0, low1, (high0 ^ c3 ^ k1) >>> 0, low0];
    [k0, k1] = [(k0 + 0x9e3779b9) >>> 0, (k1 + 0xbb67ae85) >>> 0];
  }
  return [c0, c1, c2, c3];
}

/** Returns the upper word of the product of two words. */
function multiplyHigh(a: number, b: number): number {
  const [aLow, aHigh, bLow, bHigh] = [a & 0xffff, a >>> 16, b & 0xffff, b >>> 16];
  const firstPartialSum = aHigh * bLow + Math.floor((aLow * bLow) / 65536);
  const secondPartialSum = aLow * bHigh + (firstPartialSum % 65536);
  return (aHigh * bHigh + Math.floor(firstPartialSum / 65536) + Math.floor(secondPartialSum / 65536)) >>> 0;
}
