import { expectValue, formatValue, OptionError, ShapeError } from "../errors.ts";
import type { Mask, Slice, SliceType } from "./slice.ts";
import { verifySlice, verifySlices } from "./verify.ts";

// The masks there are: functions that return a `Mask` (slice.ts). Where queries and keys differ in number, the last query stands beside the last key (bottom-right aligned): query q has
// the position q + shift among the keys, shift = keys − queries. Decoding with a cache needs it so.

function defineMask(name: string, slices: (queries: number, keys: number) => readonly Slice[]): Mask {
  return {
    name,
    slices(queries, keys) {
      for (const each of [queries, keys]) checkCount(`${name}: slices`, each, 0);
      return slices(queries, keys).filter((slice) => slice.q0 < slice.q1 && slice.k0 < slice.k1);
    },
  };
}

function rectangle(q1: number, k1: number, type: SliceType): Slice {
  return { q0: 0, q1, k0: 0, k1, type };
}

/** Every query sees every key. */
export function full(): Mask {
  return defineMask("full", (queries, keys) => [rectangle(queries, keys, "full")]);
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
  return defineMask("causal", (queries, keys) => [rectangle(queries, keys, "causal")]);
}

/** Every query sees itself and what comes after it. Top-left aligned: query q sees the keys from q on. */
export function inverseCausal(): Mask {
  return defineMask("inverseCausal", (queries, keys) => [rectangle(queries, keys, "inverseCausal")]);
}

/**
 * Both borders slant: query q sees the keys from q to q + keys − queries, and nothing if there are fewer keys than
 * queries. For self-attention that is itself alone. MagiAttention's BICAUSAL.
 */
export function bidirectionalCausal(): Mask {
  return defineMask("bidirectionalCausal", (queries, keys) => [rectangle(queries, keys, "bidirectionalCausal")]);
}

/**
 * Every query sees itself and the `size` − 1 before it. Bottom-right aligned.
 *
 * @throws OptionError if `size` is not an integer ≥ 1.
 */
export function slidingWindow(size: number): Mask {
  checkCount("slidingWindow", size, 1);
  return defineMask(`slidingWindow(${size})`, (queries, keys) => {
    const shift = keys - queries;
    // Rows before `turn` reach back to the first key; from there on both borders slant.
    const first = Math.min(queries, Math.max(0, -shift));
    const turn = Math.min(queries, Math.max(first, size - shift));
    return [
      { q0: first, q1: turn, k0: 0, k1: turn + shift, type: "causal" },
      { q0: turn, q1: queries, k0: turn + shift - size + 1, k1: keys, type: "bidirectionalCausal" },
    ];
  });
}

/**
 * Documents one after another, each seeing only itself: fully, or causally. For self-attention.
 *
 * @param lengths Rows of each document, in order; their sum must be the sequence's length.
 * @throws ShapeError, when applied, if it is not; OptionError for lengths that are not integers ≥ 0.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * masks.documents([2, 3], "causal").slices(5, 5).length; // => 2
 * ```
 */
export function documents(lengths: readonly number[], inner: "causal" | "full" = "full"): Mask {
  expectValue("documents", Array.isArray(lengths), "an array of lengths", lengths);
  if (inner !== "causal" && inner !== "full") {
    throw new OptionError({ where: "documents", expected: '"causal" or "full"', received: formatValue(inner) });
  }
  const copied = [...lengths];
  const name = `documents(${lengths.length}, ${inner})`;
  for (const length of copied) checkCount(name, length, 0);
  const total = copied.reduce((sum, length) => sum + length, 0);
  return defineMask(name, (queries, keys) => {
    if (queries !== total || keys !== total) {
      throw new ShapeError({
        where: name,
        expected: `a sequence of ${total}, the sum of the documents' lengths`,
        received: `${queries} queries and ${keys} keys`,
      });
    }
    let end = 0;
    return copied.map((length) => {
      const start = end;
      end += length;
      return { q0: start, q1: end, k0: start, k1: end, type: inner };
    });
  });
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
    const first = Math.min(queries, Math.max(0, count - (keys - queries)));
    return [
      { q0: 0, q1: queries, k0: 0, k1: count, type: "full" },
      { q0: first, q1: queries, k0: count, k1: keys, type: "causal" },
    ];
  });
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
export function fromSlices(list: readonly Slice[]): Mask {
  expectValue("fromSlices", Array.isArray(list), "an array of slices", list);
  const name = `fromSlices(${list.length})`;
  const slices = list.map((slice) => ({ ...slice }));
  for (const slice of slices) verifySlice(name, slice);
  return defineMask(name, (queries, keys) => {
    verifySlices(name, slices, { queries, keys });
    return slices;
  });
}

function checkCount(where: string, count: number, least: number): void {
  if (Number.isSafeInteger(count) && count >= least) return;
  throw new OptionError({ where, expected: `an integer ≥ ${least}`, received: formatValue(count) });
}
