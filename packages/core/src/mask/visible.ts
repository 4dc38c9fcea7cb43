import { checkWholeSpans, type Span } from "../placement/span.ts";
import { pairsWithin } from "./area.ts";
import { meetsBox } from "./overlap.ts";
import { checkSlices, type Slice } from "./slice.ts";

/**
 * Whether any of these queries sees any of these keys; what a backend asks before it computes or sends a tile.
 * Exact, for spans of any step; of tiles of more than 2⁵³ pairs with a step above 1 only what lies between the first and the
 * last position counts, so that the answer may be true without need.
 *
 * @example
 * ```ts
 * import { isVisible, masks } from "@mosaic/core";
 * const span = (start: number) => [{ start, length: 4, step: 1 }];
 * const slices = masks.causal().slices(8, 8);
 * isVisible(span(0), span(4), slices); // => false
 * isVisible(span(4), span(0), slices); // => true
 * ```
 * @throws OptionError for what are no spans, or no slices.
 */
export function isVisible(queries: readonly Span[], keys: readonly Span[], slices: readonly Slice[]): boolean {
  checkWholeSpans("isVisible: queries", queries);
  checkWholeSpans("isVisible: keys", keys);
  checkSlices("isVisible: slices", slices);
  return seesAny(queries, keys, slices);
}

/** `isVisible`, of what was checked before: backends ask for every pair of ranks. */
export function seesAny(queries: readonly Span[], keys: readonly Span[], slices: readonly Slice[]): boolean {
  for (const slice of slices) {
    if (slice.q0 >= slice.q1 || slice.k0 >= slice.k1) continue;
    for (const q of queries) {
      const [q0, q1] = [q.start, endOf(q)];
      if (q0 >= q1 || slice.q0 >= q1 || q0 >= slice.q1) continue;
      for (const k of keys) {
        const [k0, k1] = [k.start, endOf(k)];
        // Boxes first: of 10 000 documents nearly all lie elsewhere, and of a sequence of one nearly all are within.
        if (k0 >= k1 || slice.k0 >= k1 || k0 >= slice.k1) continue;
        if (!meets(slice, { q0, q1, k0, k1 })) continue;
        const isDense = (q.step === 1 || q.length === 1) && (k.step === 1 || k.length === 1);
        if (isDense || q.length * k.length > Number.MAX_SAFE_INTEGER || pairsWithin(q, k, slice) > 0) return true;
      }
    }
  }
  return false;
}

/** `meetsBox`, of boxes that meet: one slanted border is farthest out at one end of the rows. */
function meets(slice: Slice, box: Omit<Slice, "type">): boolean {
  const { type } = slice;
  if (type === "full" || type === "bidirectionalCausal") return type === "full" || meetsBox(slice, box);
  const first = Math.max(box.q0, slice.q0);
  const last = Math.min(box.q1, slice.q1) - 1;
  const left = type === "inverseCausal" ? slice.k0 + first - slice.q0 : slice.k0;
  const right = type === "causal" ? slice.k1 - (slice.q1 - 1 - last) : slice.k1;
  return Math.max(box.k0, left) < Math.min(box.k1, right);
}

/** The position after the last; no more than the start of a span that has none. */
function endOf({ start, length, step }: Span): number {
  return start + (length - 1) * step + 1;
}
