import { type Mask, masks } from "@mosaic/core";
import { randomSlices, type MaskMod, slicesToMaskMod } from "../oracle/attention.ts";

/** A mask, and its definition pair by pair, in words of the sequence and not of slices. */
export interface MaskTrial {
  readonly mask: Mask;
  readonly maskMod: MaskMod;
}

/**
 * Every constructor of core, and random lists, for sequences of these lengths.
 *
 * @example
 * ```ts
 * import { maskTrials } from "@mosaic/conformance";
 * const { mask, maskMod } = maskTrials(4, 4, 1)[1]!;
 * mask.name; // => "causal"
 * maskMod(2, 3); // => false
 * ```
 */
export function maskTrials(queries: number, keys: number, seed: number): readonly MaskTrial[] {
  const name = `${queries} ${keys} ${seed}`;
  const trials = trialCache.get(name) ?? makeTrials(queries, keys, seed);
  trialCache.set(name, trials);
  return trials;
}

/** Made once: what float64 answers to a definition can then be kept with it. */
const trialCache = new Map<string, readonly MaskTrial[]>();

function makeTrials(queries: number, keys: number, seed: number): readonly MaskTrial[] {
  const shift = keys - queries;
  const window = 1 + Math.ceil(keys / 5);
  const first = Math.floor(keys / 3);
  const random = [1, 2, 3].map((i) => randomSlices(queries, keys, seed + i));
  return [
    { mask: masks.full(), maskMod: () => true },
    { mask: masks.causal(), maskMod: (q, k) => k <= q + shift },
    { mask: masks.inverseCausal(), maskMod: (q, k) => k >= q },
    { mask: masks.bidirectionalCausal(), maskMod: (q, k) => k >= q && k <= q + shift },
    { mask: masks.slidingWindow(window), maskMod: (q, k) => k <= q + shift && k > q + shift - window },
    { mask: masks.prefix(first), maskMod: (q, k) => k < first || k <= q + shift },
    ...(queries === keys ? documentTrials(queries) : []),
    ...random.map((slices) => ({ mask: masks.fromSlices(slices), maskMod: slicesToMaskMod(slices) })),
    { mask: masks.fromSlices([]), maskMod: () => false },
  ];
}

function documentTrials(length: number): MaskTrial[] {
  const lengths = [Math.floor(length / 2), 0, Math.min(1, length), 0];
  lengths[3] = length - lengths[0]! - lengths[2]!;
  const documentOf = (position: number): number => {
    let end = 0;
    return lengths.findIndex((each) => position < (end += each));
  };
  return [
    { mask: masks.documents(lengths), maskMod: (q, k) => documentOf(q) === documentOf(k) },
    { mask: masks.documents(lengths, "causal"), maskMod: (q, k) => documentOf(q) === documentOf(k) && k <= q },
  ];
}
