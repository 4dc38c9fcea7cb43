import type { AttentionModifiers } from "../attention/tile.ts";
import { expectValue, OptionError, ShapeError } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf, type ResolvedOptionsOf } from "../options.ts";
import { full } from "./masks.ts";
import { checkSlices, type Mask, type Slice } from "./slice.ts";
import { resolveSlices, shiftSlices } from "./verify.ts";

// A batch whose samples see different keys: a list of slices for each sample, in the positions of the padded sequences.
// Rows of padding are in no slice, so they see nothing and nothing sees them.

const sampleLengths = defineOptions("lengths", {
  /** Queries of each sample. Default: all. */
  queries: option.array(option.integer({ min: 0 }), { optional: true }),
  /** Keys of each sample. Default: all. */
  keys: option.array(option.integer({ min: 0 }), { optional: true }),
});

export const batchMaskOptions = defineOptions("batch mask", {
  /** Which keys each query sees, in global positions: one mask, or one for each sample of the batch. Default: all. */
  mask: option.either(option.mask(), option.array(option.mask()), { optional: true }),
  /**
   * Tokens of each sample, `{ queries: [5, 8], keys: [5, 8] }`, where sequences are padded to one length. A sample's mask is over
   * its own tokens, as if it were alone; padding sees nothing and is seen by nothing. Default: no padding.
   */
  lengths: option.nested(sampleLengths, {
    expected: "{ queries?, keys? } with arrays of integers ≥ 0",
    optional: true,
  }),
  /** Where the padding lies, before the tokens or after them. Default "right". */
  padding: option.oneOf(["left", "right"], { default: "right" }),
});

/** Samples, and positions of the sequences, padding included. */
interface BatchShape {
  readonly batch: number;
  readonly queries: number;
  readonly keys: number;
}

/** A batch's masks as backends and kernels take them: `mask` if all samples see the same, else `modifiers.sampleMasks`. */
export interface ResolvedBatchMask {
  readonly mask: readonly Slice[];
  readonly modifiers: AttentionModifiers | undefined;
}

const fullMask: Mask = full();
const emptySlices: readonly Slice[] = [];

/**
 * The slices of a batch, verified, of options that were parsed. Each sample has its mask over its own lengths, as if it were alone and unpadded, shifted by
 * the padding on the left. Masks are resolved once for each pair of lengths (`resolveSlices`), and the same masks and lengths
 * give the same object, so that what is derived from it is derived once.
 *
 * @throws ShapeError for as many masks or lengths as there are not samples, and for lengths beyond the sequences.
 */
export function resolveBatchMaskUnchecked(
  where: string,
  { mask = fullMask, lengths = {}, padding }: ResolvedOptionsOf<typeof batchMaskOptions>,
  { batch, queries, keys }: BatchShape,
): ResolvedBatchMask {
  const isPerSample = Array.isArray(mask);
  if (!isPerSample && !lengths.queries && !lengths.keys) {
    return { mask: resolveSlices(mask as Mask, queries, keys), modifiers: undefined };
  }
  if (isPerSample) checkCount(`${where}: mask`, "masks", mask.length, batch);
  checkLengths(`${where}: lengths.queries`, lengths.queries, batch, queries);
  checkLengths(`${where}: lengths.keys`, lengths.keys, batch, keys);
  const samples = Array.from({ length: batch }, (_, sample) => {
    const sampleMask = isPerSample ? (mask as readonly Mask[])[sample]! : (mask as Mask);
    const [sampleQueries, sampleKeys] = [lengths.queries?.[sample] ?? queries, lengths.keys?.[sample] ?? keys];
    const slices = resolveSlices(sampleMask, sampleQueries, sampleKeys);
    return padding === "right" ? slices : shiftSlices(slices, queries - sampleQueries, keys - sampleKeys);
  });
  const [firstSampleSlices] = samples;
  if (firstSampleSlices === undefined) return { mask: emptySlices, modifiers: undefined };
  if (samples.every((slices) => slices === firstSampleSlices)) return { mask: firstSampleSlices, modifiers: undefined };
  return internSamples(samples);
}

/**
 * That positions of the padded sequences are as far apart as those of each sample alone: what depends on the distance of query and
 * key, named by `positionUse`, would differ. Padding on the left moves both, so it must be as long for the queries as for the keys.
 *
 * @throws OptionError that names the first sample whose padding is not.
 */
export function checkDistances(
  where: string,
  positionUse: string,
  { lengths = {}, padding }: Pick<OptionsOf<typeof batchMaskOptions>, "lengths" | "padding">,
  { batch, queries, keys }: BatchShape,
): void {
  if (padding !== "left" || (!lengths.queries && !lengths.keys)) return;
  for (let sample = 0; sample < batch; sample++) {
    const [sampleQueries, sampleKeys] = [lengths.queries?.[sample] ?? queries, lengths.keys?.[sample] ?? keys];
    const [queryPadding, keyPadding] = [queries - sampleQueries, keys - sampleKeys];
    if (queryPadding === keyPadding || sampleQueries === 0 || sampleKeys === 0) continue;
    throw new OptionError({
      where: `${where}: padding "left" with ${positionUse}`,
      expected:
        "as much padding before the queries as before the keys of each sample, so that their distances are those of the sample alone",
      received: `${queryPadding} positions before the queries and ${keyPadding} before the keys of sample ${sample}`,
      remedy: 'pad on the right and pass padding: "right"',
    });
  }
}

function checkCount(where: string, entryName: string, count: number, batch: number): void {
  if (count === batch) return;
  throw new ShapeError({
    where,
    expected: `${batch} ${entryName}, one for each sample of the batch`,
    received: String(count),
    remedy: "pass one entry per sample of this rank's q",
  });
}

// oxlint-disable-next-line max-params -- where, what, how many, and how long
function checkLengths(where: string, lengths: readonly number[] | undefined, batch: number, positions: number): void {
  if (lengths === undefined) return;
  checkCount(where, "lengths", lengths.length, batch);
  const sample = lengths.findIndex((length) => length > positions);
  if (sample < 0) return;
  throw new ShapeError({
    where: `${where}[${sample}]`,
    expected: `at most ${positions} tokens, the length of the padded sequence`,
    received: String(lengths[sample]),
    remedy: "pass the number of tokens in each sample, without padding",
  });
}

/** More than a program uses at a time of batches that begin with the same sample. */
const MAX_INTERNED_MASKS = 64;

/** By the list of the first sample. */
const internedMasks = new WeakMap<readonly Slice[], ResolvedBatchMask[]>();

/** One object for equal samples: caches of backends compare by identity. */
function internSamples(samples: readonly (readonly Slice[])[]): ResolvedBatchMask {
  const [firstSampleSlices] = samples as [readonly Slice[]];
  const candidates = internedMasks.get(firstSampleSlices) ?? [];
  internedMasks.set(firstSampleSlices, candidates);
  for (const candidate of candidates) {
    const { sampleMasks = [] } = candidate.modifiers!;
    if (sampleMasks.length === samples.length && sampleMasks.every((slices, i) => slices === samples[i]))
      return candidate;
  }
  const batchMask = { mask: emptySlices, modifiers: { sampleMasks: samples } };
  if (candidates.length >= MAX_INTERNED_MASKS) candidates.shift();
  candidates.push(batchMask);
  return batchMask;
}

/** By the masks of the samples, then by the mask of all. */
const unionCache = new WeakMap<readonly (readonly Slice[])[], WeakMap<readonly Slice[], readonly Slice[]>>();

/**
 * What some sample of a call sees: the slices by which backends find out who needs whose keys. Those of different samples
 * may overlap. Without sample masks it is the call's mask itself.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * import { unionSlices } from "@mosaic/core/context-parallel";
 * const [short, long] = [masks.causal().slices(2, 2), masks.causal().slices(5, 5)];
 * const union = unionSlices({ mask: [], modifiers: { sampleMasks: [short, long, short] } });
 * union.map(({ q1 }) => q1); // => [2, 5]
 * ```
 * @throws OptionError for what are no slices.
 */
export function unionSlices(call: {
  readonly mask: readonly Slice[];
  readonly modifiers?: Pick<AttentionModifiers, "sampleMasks"> | undefined;
}): readonly Slice[] {
  const { mask, modifiers } = call ?? {};
  checkSlices("unionSlices: mask", mask);
  const sampleMasks = modifiers?.sampleMasks;
  if (!sampleMasks) return mask;
  expectValue(
    "unionSlices: sampleMasks",
    Array.isArray(sampleMasks),
    "an array of slices for each sample",
    sampleMasks,
  );
  let unionByMask = unionCache.get(sampleMasks);
  if (!unionByMask) unionCache.set(sampleMasks, (unionByMask = new WeakMap()));
  let union = unionByMask.get(mask);
  if (!union) unionByMask.set(mask, (union = distinctSlices([mask, ...sampleMasks])));
  return union;
}

function distinctSlices(sampleSlices: readonly (readonly Slice[])[]): readonly Slice[] {
  const slicesByKey = new Map<string, Slice>();
  for (const slices of new Set(sampleSlices)) {
    checkSlices("unionSlices", slices);
    for (const slice of slices) {
      const { q0, q1, k0, k1, type } = slice;
      const key = `${q0},${q1},${k0},${k1},${type}`;
      if (!slicesByKey.has(key)) slicesByKey.set(key, slice);
    }
  }
  return [...slicesByKey.values()];
}
