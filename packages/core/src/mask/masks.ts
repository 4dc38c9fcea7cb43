import { expectValue, OptionError, ShapeError } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { checkCount, defineMask, formatCall, formatList, formatObject } from "./define.ts";
import { createBand, mergeIntoDisjoint } from "./region.ts";
import type { Mask, Slice, SliceType } from "./slice.ts";
import { verifySlice, verifySlices } from "./verify.ts";

// The built-in masks: functions that return a `Mask` (slice.ts). If the numbers of queries and keys differ, the last
// query is aligned with the last key (bottom-right aligned): query q has the position q + shift among the keys, shift =
// keys − queries. Decoding with a cache requires this alignment.

function rectangle(q1: number, k1: number, type: SliceType): Slice {
  return { q0: 0, q1, k0: 0, k1, type };
}

/** Creates a mask of one slice that contains all pairs. */
function defineWhole(type: SliceType): Mask {
  return defineMask(type, (queries, keys) => [Object.freeze(rectangle(queries, keys, type))]);
}

// Created once, because values that are derived from a mask, such as a backend's plan, are cached by its identity.
const fullMask = defineWhole("full");
const causalMask = defineWhole("causal");
const inverseCausalMask = defineWhole("inverseCausal");
const bidirectionalCausalMask = defineWhole("bidirectionalCausal");

/** Returns the mask in which every query attends to every key. */
export function full(): Mask {
  return fullMask;
}

/**
 * Returns the mask in which every query attends to its own position and all positions before. Bottom-right aligned: the
 * last query attends to every key, and queries aligned before the first key attend to none.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.causal().slices(4, 4); // => [{ q0: 0, q1: 4, k0: 0, k1: 4, type: "causal" }]
 * ```
 */
export function causal(): Mask {
  return causalMask;
}

/**
 * Returns the mask in which every query attends to its own position and all positions after. Top-left aligned: query q
 * attends to keys k ≥ q.
 */
export function inverseCausal(): Mask {
  return inverseCausalMask;
}

/**
 * Returns the mask with two diagonal borders: query q attends to keys q to q + keys − queries, or to none if there are
 * fewer keys than queries. In self-attention, each query attends only to itself. MagiAttention's BICAUSAL.
 */
export function bidirectionalCausal(): Mask {
  return bidirectionalCausalMask;
}

export const slidingWindowOptions = defineOptions("slidingWindow", {
  /** Number of keys before its own position to which each query attends. Default: all of them. */
  left: option.integer({ min: 0, optional: true }),
  /** Number of keys after its own position to which each query attends. Default: all of them. */
  right: option.integer({ min: 0, optional: true }),
});
/** Extents of a two-sided window. */
export type SlidingWindowOptions = OptionsOf<typeof slidingWindowOptions>;

/**
 * Returns the mask in which every query attends to its own position and the `window` − 1 keys before it, or to `left`
 * keys before it, its own position, and `right` keys after it. Bottom-right aligned.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.slidingWindow(3).slices(8, 8).length; // => 2
 * masks.maskArea(masks.slidingWindow({ left: 1, right: 1 }), 8, 8); // => 22
 * ```
 * @throws OptionError if `window` is not an integer ≥ 1, if `left` or `right` is not an integer ≥ 0, or if neither is
 * passed.
 */
export function slidingWindow(window: number | SlidingWindowOptions): Mask {
  if (typeof window !== "object" || window === null) {
    checkCount("slidingWindow", window, 1);
    const bounds = { left: window - 1, right: 0 };
    return defineMask(`slidingWindow(${window})`, (queries, keys) => createBand(queries, keys, bounds));
  }
  const { left, right } = slidingWindowOptions.parse(window);
  if (left === undefined && right === undefined) {
    throw new OptionError({
      where: "slidingWindow",
      expected: "left, right or both",
      received: "neither",
      remedy: "use masks.full() for a window without bounds",
    });
  }
  const definedBounds = Object.entries({ left, right }).filter(([, value]) => value !== undefined);
  const name = `slidingWindow({ ${definedBounds.map(([side, value]) => `${side}: ${value}`).join(", ")} })`;
  const windowBounds = { left: left ?? Number.POSITIVE_INFINITY, right: right ?? Number.POSITIVE_INFINITY };
  return defineMask(name, (queries, keys) => createBand(queries, keys, windowBounds));
}

/**
 * Returns the mask in which every query attends to the first `count` keys, and causally to the others. For
 * bidirectional attention to a prefix (Raffel et al. 2020, "prefix LM").
 *
 * @throws OptionError if `count` is not an integer ≥ 0. ShapeError, when applied, if there are fewer than `count` keys.
 */
export function prefix(count: number): Mask {
  checkCount("prefix", count, 0);
  return defineMask(`prefix(${count})`, (queries, keys) => {
    if (count > keys) {
      throw new ShapeError({ where: `prefix(${count})`, expected: `at least ${count} keys`, received: String(keys) });
    }
    const firstCausalQuery = Math.min(queries, Math.max(0, count - (keys - queries)));
    return [
      { q0: 0, q1: queries, k0: 0, k1: count, type: "full" },
      { q0: firstCausalQuery, q1: queries, k0: count, k1: keys, type: "causal" },
    ];
  });
}

/**
 * Returns the mask in which every query attends to the keys of its own block of `size` positions and of all blocks
 * before. For sequences that are generated block by block, such as chunks of frames or tokens. Bottom-right aligned:
 * query q is in the block of position q + keys − queries, and attends to nothing if this position is negative.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.blockCausal(2).slices(4, 4).map(({ q0, q1, k1 }) => [q0, q1, k1]); // => [[0, 2, 2], [2, 4, 4]]
 * ```
 * @throws OptionError if `size` is not an integer ≥ 1.
 */
export function blockCausal(size: number): Mask {
  checkCount("blockCausal", size, 1);
  return defineMask(`blockCausal(${size})`, (queries, keys) => {
    const shift = keys - queries;
    const firstBlock = Math.floor(Math.max(0, shift) / size);
    const count = Math.max(0, Math.ceil(keys / size) - firstBlock);
    return Array.from({ length: count }, (_, i) => {
      const [start, end] = [(firstBlock + i) * size, Math.min(keys, (firstBlock + i + 1) * size)];
      return { ...rectangle(end - shift, end, "full"), q0: Math.max(0, start - shift) };
    });
  });
}

export const globalTokensOptions = defineOptions("globalTokens", {
  /** Whether queries of global tokens attend to every key. Default false. */
  queries: option.boolean({ default: false }),
});
/** Options of `globalTokens`. */
export type GlobalTokensOptions = OptionsOf<typeof globalTokensOptions>;

/**
 * Returns the mask in which every query attends to the global tokens: the first `tokens` tokens, or a list of
 * positions. With `queries`, global tokens also attend to every key (Beltagy et al. 2020, "Longformer"). No other pairs
 * are visible; combine it with other masks by `or`. Positions are those of the keys. Bottom-right aligned: the query of
 * position p is p + queries − keys, if it exists.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * const longformer = masks.or(masks.slidingWindow({ left: 256, right: 256 }), masks.globalTokens(4, { queries: true }));
 * const sinks = masks.or(masks.slidingWindow(512), masks.and(masks.causal(), masks.globalTokens(4)));
 * sinks.slices(1024, 1024).map(({ type }) => type); // => ["causal", "full", "bidirectionalCausal"]
 * ```
 * @throws OptionError for invalid positions. ShapeError, when applied, if a position is beyond the last key.
 */
export function globalTokens(tokens: number | readonly number[], options?: GlobalTokensOptions): Mask {
  const where = "globalTokens";
  const { queries: queriesSeeAll } = globalTokensOptions.parse(options);
  const positions = Array.isArray(tokens) ? [...(tokens as readonly unknown[])] : undefined;
  expectValue(
    where,
    positions !== undefined || typeof tokens === "number",
    "a number or an array of positions",
    tokens,
  );
  for (const position of positions ?? [tokens]) checkCount(where, position, 0);
  const ranges = positions ? joinPositions(positions as number[]) : [{ start: 0, end: tokens as number }];
  const positionText =
    positions && (positions.length <= 8 ? `[${positions.join(", ")}]` : `${positions.length} positions`);
  const name = `${where}(${positionText ?? String(tokens)}${queriesSeeAll ? ", { queries: true }" : ""})`;
  const minKeys = ranges.at(-1)?.end ?? 0;
  const slicesOf = (queries: number, keys: number): readonly Slice[] => {
    if (minKeys > keys)
      throw new ShapeError({ where: name, expected: `at least ${minKeys} keys`, received: String(keys) });
    const columnSlices = ranges.map(({ start, end }): Slice => ({ ...rectangle(queries, end, "full"), k0: start }));
    if (!queriesSeeAll) return columnSlices;
    const queryRow = (position: number): number => Math.max(0, position + queries - keys);
    const rowSlices = ranges.map(
      ({ start, end }): Slice => ({ ...rectangle(queryRow(end), keys, "full"), q0: queryRow(start) }),
    );
    return mergeIntoDisjoint([...columnSlices, ...rowSlices]);
  };
  return defineMask(name, slicesOf, (namespace) =>
    formatCall(`${namespace}${where}`, [
      positions ? formatList(positions as number[]) : String(tokens),
      ...(queriesSeeAll ? ["{ queries: true }"] : []),
    ]),
  );
}

/** Joins positions, in any order, to ascending ranges with gaps between them. */
function joinPositions(positions: readonly number[]): readonly { start: number; end: number }[] {
  const ranges: { start: number; end: number }[] = [];
  for (const start of positions.toSorted((a, b) => a - b)) {
    const lastRange = ranges.at(-1);
    if (lastRange && start <= lastRange.end) lastRange.end = start + 1;
    else ranges.push({ start, end: start + 1 });
  }
  return ranges;
}

/**
 * Returns the mask with these slices, in global positions.
 *
 * @throws ShapeError, when applied, if a slice exceeds the sequence or two slices cover the same pair.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * const mask = masks.fromSlices([{ q0: 0, q1: 4, k0: 0, k1: 2, type: "full" }]);
 * mask.slices(4, 4).length; // => 1
 * ```
 */
export function fromSlices(sliceList: readonly Slice[]): Mask {
  expectValue("fromSlices", Array.isArray(sliceList), "an array of slices", sliceList);
  const name = `fromSlices(${sliceList.length})`;
  const slices = sliceList.map((slice) => ({ ...slice }));
  for (const slice of slices) verifySlice(name, slice);
  const slicesOf = (queries: number, keys: number): readonly Slice[] => {
    verifySlices(name, slices, { queries, keys });
    return slices;
  };
  return defineMask(name, slicesOf, (namespace) =>
    slices.length > MAX_WRITTEN_SLICES
      ? undefined
      : `${namespace}fromSlices([${slices.map(({ type, ...bounds }) => formatObject({ ...bounds, type: `"${type}"` })).join(", ")}])`,
  );
}

/** Maximum number of slices in an expression. Longer expressions are not readable. */
const MAX_WRITTEN_SLICES = 1024;
