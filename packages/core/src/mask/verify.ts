import { ShapeError, expectValue, formatValue } from "../errors.ts";
import { WeakCache } from "../weak-cache.ts";
import { isMask } from "./define.ts";
import { findOverlap } from "./overlap.ts";
import { enableIndexing } from "./slice-index.ts";
import { type Mask, type Slice, sliceTypeCodes } from "./slice.ts";

// Verification of the contract of `Mask`, before anything is sent and once for each pair of lengths.

/**
 * Maximum number of cached pairs of lengths per mask: more than a program uses at a time, but bounded because a
 * sequence may grow with every call.
 */
const MAX_CACHED_LENGTHS = 64;

/** Lists whose slices are known to be well-formed. */
const wellFormedSliceLists = new WeakSet<readonly Slice[]>();

const verifiedMasks = new WeakCache<Mask, string, readonly Slice[]>(MAX_CACHED_LENGTHS);

/**
 * Returns the slices of a mask over `queries` × `keys`, after verifying that they are integers within the sequences,
 * have a known type, and are disjoint. `mask.slices` is called once for each pair of lengths, and the same list is
 * returned every time.
 *
 * @example
 * ```ts
 * import { masks, resolveSlices } from "@mosaic/core";
 * const mask = masks.causal();
 * resolveSlices(mask, 4, 4); // => [{ q0: 0, q1: 4, k0: 0, k1: 4, type: "causal" }]
 * resolveSlices(mask, 4, 4) === resolveSlices(mask, 4, 4); // => true
 * ```
 * @throws ShapeError that names the slices.
 */
export function resolveSlices(mask: Mask, queries: number, keys: number): readonly Slice[] {
  expectValue("resolveSlices", isMask(mask), "a Mask { name, slices }", mask);
  for (const each of [queries, keys])
    expectValue("resolveSlices", Number.isSafeInteger(each) && each >= 0, "lengths ≥ 0", each);
  return verifiedMasks.getOrCreate(mask, `${queries},${keys}`, () => {
    const slices = mask.slices(queries, keys);
    verifySlices(`mask ${mask.name}`, slices, { queries, keys });
    wellFormedSliceLists.add(slices);
    enableIndexing(slices);
    return slices;
  });
}

/** Shifted copies of verified lists, by list and offsets. */
const shiftedSliceLists = new WeakCache<readonly Slice[], string, readonly Slice[]>(MAX_CACHED_LENGTHS);

/**
 * Returns the slices of a verified list, shifted by `queries` and `keys` positions. Equal offsets return the same list.
 */
export function shiftSlices(slices: readonly Slice[], queries: number, keys: number): readonly Slice[] {
  if (queries === 0 && keys === 0) return slices;
  return shiftedSliceLists.getOrCreate(slices, `${queries},${keys}`, () => {
    const shiftedSlices = slices.map(({ q0, q1, k0, k1, type }) => {
      return { q0: q0 + queries, q1: q1 + queries, k0: k0 + keys, k1: k1 + keys, type };
    });
    wellFormedSliceLists.add(shiftedSlices);
    return shiftedSlices;
  });
}

/** Throws a ShapeError unless slices are well-formed, within the sequences, and disjoint. */
export function verifySlices(
  where: string,
  slices: readonly Slice[],
  lengths: { queries: number; keys: number },
): void {
  if (!Array.isArray(slices)) {
    throw new ShapeError({ where, expected: "an array of slices", received: formatValue(slices) });
  }
  for (const slice of slices) {
    verifySlice(where, slice);
    if (slice.q1 <= lengths.queries && slice.k1 <= lengths.keys) continue;
    throw new ShapeError({
      where,
      expected: `slices within ${lengths.queries} queries and ${lengths.keys} keys`,
      received: formatSlice(slice),
    });
  }
  verifyDisjoint(where, slices);
}

function verifyDisjoint(where: string, slices: readonly Slice[]): void {
  const overlappingSlices = findOverlap(slices);
  if (!overlappingSlices) return;
  throw new ShapeError({
    where,
    expected: "disjoint slices",
    received: `overlapping slices ${overlappingSlices.map(formatSlice).join(" and ")}`,
    remedy: "clip one of them",
  });
}

/** Throws a ShapeError unless each slice is well-formed. Lists returned by `resolveSlices` are not checked again. */
export function verifyWellFormed(where: string, slices: readonly Slice[]): void {
  expectValue(where, Array.isArray(slices), "an array of slices", slices);
  if (wellFormedSliceLists.has(slices)) return;
  for (const slice of slices) verifySlice(where, slice);
}

/** Sample masks that were verified to be disjoint from a mask common to all samples. */
const verifiedSampleMasks = new WeakMap<readonly (readonly Slice[])[], WeakSet<readonly Slice[]>>();

/**
 * Throws a ShapeError unless the slices of each sample are well-formed and disjoint from those of the common mask.
 * Results are cached.
 */
export function verifySampleMasks(
  where: string,
  mask: readonly Slice[],
  sampleMasks: readonly (readonly Slice[])[],
): void {
  expectValue(where, Array.isArray(sampleMasks), "an array of slices for each sample", sampleMasks);
  if (verifiedSampleMasks.get(sampleMasks)?.has(mask)) return;
  for (const [sample, slices] of sampleMasks.entries()) {
    verifyWellFormed(`${where} ${sample}`, slices);
    verifyDisjoint(`${where} ${sample}`, [...mask, ...slices]);
  }
  const masks = verifiedSampleMasks.get(sampleMasks) ?? new WeakSet();
  verifiedSampleMasks.set(sampleMasks, masks.add(mask));
}

/** Throws a ShapeError unless a slice has integer bounds with 0 ≤ q0 ≤ q1 and 0 ≤ k0 ≤ k1, and a known type. */
export function verifySlice(where: string, slice: Slice): void {
  expectValue(where, typeof slice === "object" && slice !== null, "slices { q0, q1, k0, k1, type }", slice);
  const { q0, q1, k0, k1, type } = slice;
  const areIntegers =
    Number.isSafeInteger(q0) && Number.isSafeInteger(q1) && Number.isSafeInteger(k0) && Number.isSafeInteger(k1);
  const isKnownType = typeof type === "string" && Object.hasOwn(sliceTypeCodes, type);
  if (areIntegers && isKnownType && 0 <= q0 && q0 <= q1 && 0 <= k0 && k0 <= k1) return;
  throw new ShapeError({
    where,
    expected: `integers 0 ≤ q0 ≤ q1, 0 ≤ k0 ≤ k1 and a type among ${Object.keys(sliceTypeCodes).join(", ")}`,
    received: formatSlice(slice),
  });
}

function formatSlice({ q0, q1, k0, k1, type }: Slice): string {
  const [queryStartText, queryEndText, keyStartText, keyEndText, kind] = [q0, q1, k0, k1, type].map((each: unknown) =>
    formatValue(each),
  );
  return `queries [${queryStartText},${queryEndText}) × keys [${keyStartText},${keyEndText}) type ${kind}`;
}
