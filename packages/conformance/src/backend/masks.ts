import { type Mask, masks } from "@mosaic/core";
import { randomSlices, type MaskMod, slicesToMaskMod } from "../oracle/attention.ts";

/** A mask, and a definition of its visible pairs in terms of positions instead of slices. */
export interface MaskTrial {
  readonly mask: Mask;
  readonly maskMod: MaskMod;
}

/**
 * Returns a mask of every constructor of core, and masks of random slices, for sequences of these lengths.
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
  const key = `${queries} ${keys} ${seed}`;
  const trials = trialCache.get(key) ?? makeTrials(queries, keys, seed);
  trialCache.set(key, trials);
  return trials;
}

/** Trials are created once, because the float64 reference is cached by `maskMod`. */
const trialCache = new Map<string, readonly MaskTrial[]>();

function makeTrials(queries: number, keys: number, seed: number): readonly MaskTrial[] {
  const queryOffset = keys - queries;
  const windowSize = 1 + Math.ceil(keys / 5);
  const prefixLength = Math.floor(keys / 3);
  const randomSliceLists = [1, 2, 3].map((i) => randomSlices(queries, keys, seed + i));
  return [
    { mask: masks.full(), maskMod: () => true },
    { mask: masks.causal(), maskMod: (q, k) => k <= q + queryOffset },
    { mask: masks.inverseCausal(), maskMod: (q, k) => k >= q },
    { mask: masks.bidirectionalCausal(), maskMod: (q, k) => k >= q && k <= q + queryOffset },
    {
      mask: masks.slidingWindow(windowSize),
      maskMod: (q, k) => k <= q + queryOffset && k > q + queryOffset - windowSize,
    },
    { mask: masks.prefix(prefixLength), maskMod: (q, k) => k < prefixLength || k <= q + queryOffset },
    {
      mask: masks.blockCausal(windowSize),
      maskMod: (q, k) => q + queryOffset >= 0 && k < nextBlockStart(q + queryOffset, windowSize),
    },
    ...(keys > 0 ? [globalTokensTrial(queries, keys, windowSize)] : []),
    ...(queries === keys ? documentTrials(queries) : []),
    ...randomSliceLists.map((slices) => ({ mask: masks.fromSlices(slices), maskMod: slicesToMaskMod(slices) })),
    { mask: masks.fromSlices([]), maskMod: () => false },
  ];
}

/** Returns the first position after the block that contains `position`. */
function nextBlockStart(position: number, size: number): number {
  return (Math.floor(position / size) + 1) * size;
}

/**
 * Returns a two-sided window with two global tokens, which attend to all positions and are visible to all: horizontal
 * and vertical stripes.
 */
function globalTokensTrial(queries: number, keys: number, right: number): MaskTrial {
  const queryOffset = keys - queries;
  const tokens = [Math.floor(keys / 4), keys - 1];
  return {
    mask: masks.or(masks.slidingWindow({ left: 2, right }), masks.globalTokens(tokens, { queries: true })),
    maskMod: (q, k) =>
      tokens.includes(k) ||
      tokens.includes(q + queryOffset) ||
      (k >= q + queryOffset - 2 && k <= q + queryOffset + right),
  };
}

function documentTrials(length: number): MaskTrial[] {
  const lengths = [Math.floor(length / 2), 0, Math.min(1, length), 0];
  lengths[3] = length - lengths[0]! - lengths[2]!;
  const getDocument = (position: number): number => {
    let end = 0;
    return lengths.findIndex((documentLength) => position < (end += documentLength));
  };
  return [
    { mask: masks.documents(lengths), maskMod: (q, k) => getDocument(q) === getDocument(k) },
    { mask: masks.documents(lengths, "causal"), maskMod: (q, k) => getDocument(q) === getDocument(k) && k <= q },
    {
      mask: masks.documents(lengths, masks.slidingWindow({ left: 3, right: 1 })),
      maskMod: (q, k) => getDocument(q) === getDocument(k) && k >= q - 3 && k <= q + 1,
    },
    {
      mask: masks.shareQuestion(lengths[0]!, lengths.slice(1)),
      maskMod: (q, k) => k <= q && (getDocument(k) === 0 || getDocument(k) === getDocument(q)),
    },
  ];
}
