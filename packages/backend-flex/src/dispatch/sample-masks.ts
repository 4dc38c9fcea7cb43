import { type Mask, OptionError, option, type Slice } from "@mosaic/core";
import { batchMaskOptions, resolveBatchMaskUnchecked } from "@mosaic/core/context-parallel";

/** The options of a batch whose samples are padded to one length, as of `attention` and the modules. */
export const paddingOptions = {
  /** Number of tokens of each sample, as modules take it for self-attention. */
  lengths: option.array(option.integer({ min: 0 }), { optional: true }),
  /** Number of tokens of each sample, as `attention` takes it. */
  crossLengths: batchMaskOptions.fields.lengths,
  padding: batchMaskOptions.fields.padding,
} as const;

/** Number of tokens of each sample of a batch. */
export interface SampleLengths {
  readonly queries?: readonly number[] | undefined;
  readonly keys?: readonly number[] | undefined;
}

/** The masks of a batch, and the numbers of tokens of its samples. */
export interface BatchMask {
  readonly mask: Mask | readonly Mask[];
  readonly lengths?: SampleLengths | undefined;
  readonly padding: "left" | "right";
}

/** Returns the lengths of the samples of a self-attention batch. */
export function toSampleLengths(lengths: readonly number[] | undefined): SampleLengths | undefined {
  return lengths && { queries: lengths, keys: lengths };
}

/**
 * Returns the verified slices of each sample, in positions of the padded sequences of `queries` and `keys` rows. Samples
 * with equal masks and lengths have the same list.
 */
export function resolveSampleMasks(
  where: string,
  { mask, lengths, padding }: BatchMask,
  { queries, keys }: { readonly queries: number; readonly keys: number },
): readonly (readonly Slice[])[] {
  const masks = Array.isArray(mask) ? (mask as readonly Mask[]) : undefined;
  const counts = [masks, lengths?.queries, lengths?.keys].flatMap((each) => (each ? [each.length] : []));
  const batch = counts[0] ?? 1;
  if (batch === 0) {
    throw new OptionError({
      where: `${where}: ${masks ? "mask" : "lengths"}`,
      expected: masks ? "a mask, or one mask per sample" : "the length of each sample",
      received: "none",
    });
  }
  if (counts.some((count) => count !== batch)) {
    throw new OptionError({
      where: `${where}: lengths`,
      expected: "one mask for all samples or one per sample, and one length per sample",
      received: [
        ...(masks ? [`masks: ${masks.length}`] : []),
        ...(lengths?.queries ? [`lengths of queries: ${lengths.queries.length}`] : []),
        ...(lengths?.keys ? [`lengths of keys: ${lengths.keys.length}`] : []),
      ].join(", "),
    });
  }
  const options = { mask, lengths, padding };
  const { mask: slices, modifiers } = resolveBatchMaskUnchecked(where, options, { batch, queries, keys });
  return modifiers?.sampleMasks ?? Array.from({ length: batch }, () => slices);
}
