import { expectValue, OptionError, ShapeError } from "../errors.ts";
import { defineMask, formatCall, formatMask, isMask } from "./define.ts";
import { totalArea, intersectSliceLists, mergeIntoDisjoint } from "./region.ts";
import type { Mask, Slice } from "./slice.ts";
import { resolveSlices } from "./verify.ts";

// Masks that are combined from other masks, or given by their pairs.

/**
 * Returns the intersection of masks: the pairs that are visible in all of them. For example,
 * `and(documents(lengths), slidingWindow(w))` is causal documents with a window. Each mask is applied to the same
 * queries and keys, with its own alignment.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.and(masks.causal(), masks.documents([2, 2])).slices(4, 4).map(({ type }) => type); // => ["causal", "causal"]
 * ```
 * @throws OptionError unless the arguments are masks. When the result is applied, also what the masks throw for the
 * lengths.
 */
export function and(...masks: readonly Mask[]): Mask {
  checkMasks("and", masks);
  return combine("and", masks, (sliceLists) => {
    // Shortest lists first, because a mask that is the same for all documents intersects few of their slices.
    const [shortestList, ...remainingLists] = sliceLists.toSorted((a, b) => a.length - b.length);
    return remainingLists.reduce((commonSlices, list) => intersectSliceLists(commonSlices, list), shortestList!);
  });
}

/**
 * Returns the union of masks: the pairs that are visible in any of them, each counted once. For example,
 * `or(slidingWindow(512), globalTokens(4))`. Each mask is applied to the same queries and keys, with its own alignment.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.or(masks.causal(), masks.inverseCausal()).slices(4, 4); // => [{ q0: 0, q1: 4, k0: 0, k1: 4, type: "full" }]
 * ```
 * @throws OptionError unless the arguments are masks. When the result is applied, also what the masks throw for the
 * lengths.
 */
export function or(...masks: readonly Mask[]): Mask {
  checkMasks("or", masks);
  return combine("or", masks, (sliceLists) =>
    sliceLists.length === 1 ? sliceLists[0]! : mergeIntoDisjoint(sliceLists.flat()),
  );
}

function checkMasks(where: string, masks: readonly unknown[]): void {
  if (masks.length === 0) {
    throw new OptionError({ where, expected: "at least one mask", received: "none" });
  }
  for (const operand of masks) checkMask(where, operand);
}

function checkMask(where: string, mask: unknown): asserts mask is Mask {
  expectValue(where, isMask(mask), "a Mask, such as masks.causal()", mask);
}

function combine(
  name: string,
  masks: readonly Mask[],
  merge: (sliceLists: readonly (readonly Slice[])[]) => readonly Slice[],
): Mask {
  const maskList = [...masks];
  return defineMask(
    `${name}(${maskList.map((mask) => mask.name).join(", ")})`,
    (queries, keys) => merge(maskList.map((mask) => resolveSlices(mask, queries, keys))),
    (namespace) =>
      formatCall(
        `${namespace}${name}`,
        maskList.map((mask) => formatMask(mask, namespace)),
      ),
  );
}

/**
 * Returns a mask given by its pairs: row q, column k states whether key k is visible to query q. Intended for small
 * masks in pictures and tests. The slices are those of `or` for the same pairs.
 *
 * @throws OptionError for rows of different lengths or with values that are not booleans. ShapeError when applied to
 * other lengths.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * const [yes, no] = [true, false];
 * const mask = masks.fromDense([[yes, no, no], [yes, yes, no], [yes, yes, yes]]);
 * mask.slices(3, 3); // => [{ q0: 0, q1: 3, k0: 0, k1: 3, type: "causal" }]
 * ```
 */
export function fromDense(rows: readonly (readonly boolean[])[]): Mask {
  const where = "fromDense";
  expectValue(where, Array.isArray(rows), "an array of rows of booleans", rows);
  const width = Array.isArray(rows[0]) ? rows[0].length : 0;
  for (let q = 0; q < rows.length; q++) checkRow(`${where}: row ${q}`, rows[q], width);
  const slices = mergeIntoDisjoint(rows.flatMap((row, q) => findRuns(row, q)));
  const name = `${where}(${rows.length}×${width})`;
  const slicesOf = (queries: number, keys: number): readonly Slice[] => {
    // The width of a mask without rows is unknown.
    if (queries === rows.length && (keys === width || queries === 0)) return slices;
    throw new ShapeError({
      where: name,
      expected: `${rows.length} queries and ${width} keys`,
      received: `${queries} queries and ${keys} keys`,
    });
  };
  return defineMask(name, slicesOf, () => undefined);
}

function checkRow(where: string, row: unknown, width: number): void {
  expectValue(where, Array.isArray(row), "an array of booleans", row);
  const values = row as readonly unknown[];
  expectValue(where, values.length === width, `${width} booleans, the length of row 0`, values.length);
  for (let k = 0; k < width; k++)
    expectValue(`${where}, key ${k}`, typeof values[k] === "boolean", "a boolean", values[k]);
}

function findRuns(row: readonly boolean[], q: number): Slice[] {
  const runs: Slice[] = [];
  for (let k0 = 0; k0 < row.length; k0++) {
    if (!row[k0]) continue;
    let k1 = k0 + 1;
    while (k1 < row.length && row[k1]) k1++;
    runs.push({ q0: q, q1: q + 1, k0, k1, type: "full" });
    k0 = k1;
  }
  return runs;
}

/**
 * Returns the number of (query, key) pairs that a mask makes visible, which is the work of attention. Computed from the
 * slices; exact up to 2⁵³ pairs.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.maskArea(masks.causal(), 1000, 1000); // => 500500
 * ```
 * @throws ShapeError if the mask violates its contract (`Mask`), and what the mask throws for the lengths.
 */
export function maskArea(mask: Mask, queries: number, keys: number): number {
  checkMask("maskArea", mask);
  return totalArea(resolveSlices(mask, queries, keys));
}
