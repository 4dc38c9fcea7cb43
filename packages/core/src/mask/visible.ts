import type { Span } from "../placement/span.ts";
import { sliceMeets } from "./overlap.ts";
import type { Slice } from "./slice.ts";

/**
 * Whether any of these queries sees any of these keys; what a backend asks before it computes or sends a tile.
 * Exact for spans of step 1. A span of another step counts as everything from its first position to its last, so that
 * the answer may then be true without need, but is never false when something is visible.
 *
 * @example
 * ```ts
 * import { causal, isVisible } from "@mosaic/core";
 * const span = (start: number) => [{ start, length: 4, step: 1 }];
 * const slices = causal().slices(8, 8);
 * isVisible(span(0), span(4), slices); // => false
 * isVisible(span(4), span(0), slices); // => true
 * ```
 */
export function isVisible(queries: readonly Span[], keys: readonly Span[], slices: readonly Slice[]): boolean {
  const q = hulls(queries);
  const k = hulls(keys);
  for (const slice of slices) {
    for (const [q0, q1] of q) {
      if (slice.q0 >= q1 || q0 >= slice.q1) continue;
      for (const [k0, k1] of k) {
        // Boxes first: of 10 000 documents nearly all lie elsewhere.
        if (slice.k0 < k1 && k0 < slice.k1 && sliceMeets(slice, { q0, q1, k0, k1 })) return true;
      }
    }
  }
  return false;
}

/** First position and the one after the last, of every span that has any. */
function hulls(spans: readonly Span[]): (readonly [from: number, to: number])[] {
  return spans
    .filter(({ length }) => length > 0)
    .map(({ start, length, step }) => [start, start + (length - 1) * step + 1]);
}
