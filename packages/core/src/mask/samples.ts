import type { AttentionModifiers } from "../attention/tile.ts";
import { expectValue, OptionError, ShapeError } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf, type ResolvedOptionsOf } from "../options.ts";
import { full } from "./masks.ts";
import { checkSlices, type Mask, type Slice } from "./slice.ts";
import { resolveSlices, shiftSlices } from "./verify.ts";

// Masks of a batch whose samples attend to different keys: a list of slices for each sample, in positions of the padded
// sequences. No slice contains padding, so that padding neither attends nor is attended to.

const sampleLengths = defineOptions("lengths", {
  /** Number of queries of each sample. Default: all. */
  queries: option.array(option.integer({ min: 0 }), { optional: true }),
  /** Number of keys of each sample. Default: all. */
  keys: option.array(option.integer({ min: 0 }), { optional: true }),
});

/** Declares the masks, lengths and padding of a batch. */
export const batchMaskOptions = defineOptions("batch mask", {
  /**
   * The keys that are visible to each query, in global positions: one mask, or one per sample of the batch. Default:
   * all.
   */
  mask: option.either(option.mask(), option.array(option.mask()), { optional: true }),
  /**
   * Number of tokens of each sample, `{ queries: [5, 8], keys: [5, 8] }`, if sequences are padded to one length. A
   * sample's mask applies to its own tokens, as if it were alone. Padding neither attends nor is attended to. Default:
   * no padding.
   */
  lengths: option.nested(sampleLengths, {
    expected: "{ queries?, keys? } with arrays of integers ≥ 0",
    optional: true,
  }),
  /** The side of the padding: before the tokens ("left") or after them ("right"). Default "right". */
  padding: option.oneOf(["left", "right"], { default: "right" }),
});

/** Number of samples, and lengths of the sequences including padding. */
interface BatchShape {
  readonly batch: number;
  readonly queries: number;
  readonly keys: number;
}

/**
 * The masks of a batch in the form of backends and kernels: `mask` if all samples have the same mask, otherwise
 * `modifiers.sampleMasks`.
 */
export interface ResolvedBatchMask {
  readonly mask: readonly Slice[];
  readonly modifiers: AttentionModifiers | undefined;
}

const fullMask: Mask = full();
const emptySlices: readonly Slice[] = [];

/**
 * Returns the verified slices of a batch from parsed options. The mask of each sample is applied to its own lengths, as
 * if it were alone and unpadded, and shifted by the padding on the left. Masks are resolved once for each pair of
 * lengths (`resolveSlices`). Equal masks and lengths yield the same object, so that values derived from it can be
 * cached.
 *
 * @throws ShapeError if the number of masks or lengths is not the number of samples, or if a length exceeds the
 * sequence.
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
 * Checks that the distances between queries and keys in the padded sequences equal those of each sample alone, because
 * results of `positionUse` depend on them. Padding on the left shifts both, so it must be equally long for queries and
 * keys.
 *
 * @throws OptionError that names the first sample whose paddings differ.
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

/** More batches with the same first sample than a program uses at a time. */
const MAX_INTERNED_MASKS = 64;

/** Interned masks by the slice list of the first sample. */
const internedMasks = new WeakMap<readonly Slice[], ResolvedBatchMask[]>();

/** Returns one object for equal samples, because caches of backends compare by identity. */
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

/** Unions by sample masks, then by the mask common to all samples. */
const unionCache = new WeakMap<readonly (readonly Slice[])[], WeakMap<readonly Slice[], readonly Slice[]>>();

/**
 * Returns the slices that are visible in any sample of a call, from which backends derive which rank needs which keys.
 * Slices of different samples may overlap. Without sample masks, returns the call's mask itself.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * import { unionSlices } from "@mosaic/core/context-parallel";
 * const [short, long] = [masks.causal().slices(2, 2), masks.causal().slices(5, 5)];
 * const union = unionSlices({ mask: [], modifiers: { sampleMasks: [short, long, short] } });
 * union.map(({ q1 }) => q1); // => [2, 5]
 * ```
 * @throws OptionError for invalid slices.
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
