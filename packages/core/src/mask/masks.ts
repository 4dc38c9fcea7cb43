import { expectValue, OptionError, ShapeError } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { checkCount, defineMask, formatCall, formatList, formatObject } from "./define.ts";
import { createBand, mergeIntoDisjoint } from "./region.ts";
import type { Mask, Slice, SliceType } from "./slice.ts";
import { verifySlice, verifySlices } from "./verify.ts";

// The masks there are: functions that return a `Mask` (slice.ts). Where queries and keys differ in number, the last query stands beside the last key (bottom-right aligned): query q has
// the position q + shift among the keys, shift = keys − queries. Decoding with a cache needs it so.

function rectangle(q1: number, k1: number, type: SliceType): Slice {
  return { q0: 0, q1, k0: 0, k1, type };
}

/** A mask of one slice over all pairs. */
function defineWhole(type: SliceType): Mask {
  return defineMask(type, (queries, keys) => [Object.freeze(rectangle(queries, keys, type))]);
}

// Made once: what is derived from a mask, such as a backend's plan, is kept by its identity.
const fullMask = defineWhole("full");
const causalMask = defineWhole("causal");
const inverseCausalMask = defineWhole("inverseCausal");
const bidirectionalCausalMask = defineWhole("bidirectionalCausal");

/** Every query sees every key. */
export function full(): Mask {
  return fullMask;
}

/**
 * Every query sees itself and what comes before it. Bottom-right aligned: the last query sees every key, and queries that
 * stand before the first key see nothing.
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

/** Every query sees itself and what comes after it. Top-left aligned: query q sees the keys from q on. */
export function inverseCausal(): Mask {
  return inverseCausalMask;
}

/**
 * Both borders slant: query q sees the keys from q to q + keys − queries, and nothing if there are fewer keys than
 * queries. For self-attention that is itself alone. MagiAttention's BICAUSAL.
 */
export function bidirectionalCausal(): Mask {
  return bidirectionalCausalMask;
}

export const slidingWindowOptions = defineOptions("slidingWindow", {
  /** How many keys before its own position each query sees. Default: all of them. */
  left: option.integer({ min: 0, optional: true }),
  /** How many keys after its own position each query sees. Default: all of them. */
  right: option.integer({ min: 0, optional: true }),
});
/** A window on both sides. */
export type SlidingWindowOptions = OptionsOf<typeof slidingWindowOptions>;

/**
 * Every query sees itself and the `size` − 1 before it; or `left` keys before itself, itself, and `right` keys after it.
 * Bottom-right aligned.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.slidingWindow(3).slices(8, 8).length; // => 2
 * masks.maskArea(masks.slidingWindow({ left: 1, right: 1 }), 8, 8); // => 22
 * ```
 * @throws OptionError if `size` is not an integer ≥ 1, `left` or `right` not one ≥ 0, or neither is given.
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
 * Every query sees the first `count` keys; the others are causal. For a prefix that is read as a whole (Raffel et al.
 * 2020, "prefix LM").
 *
 * @throws ShapeError, when applied, if there are fewer keys; OptionError if `count` is not an integer ≥ 0.
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
 * Blocks of `size` positions: every query sees the keys of its own block and of those before it. For what is generated a
 * block at a time: chunks of frames or of tokens. Bottom-right aligned: query q is in the block of the position q + keys −
 * queries, and sees nothing before the first.
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
  /** Whether their queries see every key, too. Default false. */
  queries: option.boolean({ default: false }),
});
/** How far tokens are global. */
export type GlobalTokensOptions = OptionsOf<typeof globalTokensOptions>;

/**
 * Tokens that every query sees, the first `tokens` or a list of positions; with `queries` they see every key, too
 * (Beltagy et al. 2020, "Longformer"). All others see nothing: join it with what else they see. Positions are those of the
 * keys. Bottom-right aligned: the query of position p is p + queries − keys, if there is one.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * const longformer = masks.or(masks.slidingWindow({ left: 256, right: 256 }), masks.globalTokens(4, { queries: true }));
 * const sinks = masks.or(masks.slidingWindow(512), masks.and(masks.causal(), masks.globalTokens(4)));
 * sinks.slices(1024, 1024).map(({ type }) => type); // => ["causal", "full", "bidirectionalCausal"]
 * ```
 * @throws ShapeError, when applied, if there are fewer keys; OptionError for what are no positions.
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

/** Positions, in any order, as ascending ranges with gaps between them. */
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
 * Any list of slices, in global positions.
 *
 * @throws ShapeError, when applied, if a slice reaches outside the sequence or two cover the same pair.
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

/** More are for no one to read. */
const MAX_WRITTEN_SLICES = 1024;
