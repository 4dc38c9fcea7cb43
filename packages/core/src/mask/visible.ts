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
  const q = queries.filter((span) => span.length > 0).map(hull);
  const k = keys.filter((span) => span.length > 0).map(hull);
  return slices.some((slice) =>
    q.some(([q0, q1]) => slice.q0 < q1 && q0 < slice.q1 && k.some(([k0, k1]) => sliceMeets(slice, { q0, q1, k0, k1 }))),
  );
}

function hull({ start, length, step }: Span): readonly [from: number, to: number] {
  return [start, start + (length - 1) * step + 1];
}
