import { expectValue, OptionError, ShapeError } from "../errors.ts";
import { defineMask, formatCall, formatMask, isMask } from "./define.ts";
import { totalArea, intersectSliceLists, mergeIntoDisjoint } from "./region.ts";
import type { Mask, Slice } from "./slice.ts";
import { resolveSlices } from "./verify.ts";

// Masks made of masks, or of pairs.

/**
 * The pairs that all masks show: causal documents with a window, `and(documents(lengths), slidingWindow(w))`. Each mask is
 * applied to the same queries and keys, and aligned as it is by itself.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.and(masks.causal(), masks.documents([2, 2])).slices(4, 4).map(({ type }) => type); // => ["causal", "causal"]
 * ```
 * @throws What a mask throws for the lengths, when applied; OptionError for what is no mask.
 */
export function and(...masks: readonly Mask[]): Mask {
  checkMasks("and", masks);
  return combine("and", masks, (sliceLists) => {
    // A mask of one kind for all documents meets few of their slices: the shortest lists first.
    const [shortestList, ...remainingLists] = sliceLists.toSorted((a, b) => a.length - b.length);
    return remainingLists.reduce((commonSlices, list) => intersectSliceLists(commonSlices, list), shortestList!);
  });
}

/**
 * The pairs that any of the masks shows, each once: `or(slidingWindow(512), globalTokens(4))`. Each mask is applied to the
 * same queries and keys, and aligned as it is by itself.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.or(masks.causal(), masks.inverseCausal()).slices(4, 4); // => [{ q0: 0, q1: 4, k0: 0, k1: 4, type: "full" }]
 * ```
 * @throws What a mask throws for the lengths, when applied; OptionError for what is no mask.
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
 * A mask by its pairs: row q, column k is whether query q sees key k. For small masks, of a picture or a test; the slices are
 * those of `or` for the same pairs.
 *
 * @throws ShapeError, when applied, for other lengths; OptionError for rows that are not equally long, or not of booleans.
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
    // Without rows the width is unknown.
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
 * How many (query, key) pairs a mask shows: what attention under it computes. Exact up to 2⁵³ pairs, from the slices.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.maskArea(masks.causal(), 1000, 1000); // => 500500
 * ```
 * @throws What the mask throws for the lengths; ShapeError if it breaks what a mask promises.
 */
export function maskArea(mask: Mask, queries: number, keys: number): number {
  checkMask("maskArea", mask);
  return totalArea(resolveSlices(mask, queries, keys));
}
