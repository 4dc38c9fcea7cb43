import { type Slice, type SliceType, hasDiagonalStart, hasDiagonalEnd } from "./slice.ts";

// The algebra of slices, after MagiAttention: a slice cut to a range of queries or keys is again slices.
// The left border of a row's keys moves right with each row if `slantsLeft(type)`, the right border if `slantsRight(type)`.

/** Keys [start, end) that row q of a slice sees; empty when start ≥ end. */
export function rowRange(slice: Slice, q: number): { readonly start: number; readonly end: number } {
  return {
    start: slice.k0 + (hasDiagonalStart(slice.type) ? q - slice.q0 : 0),
    end: slice.k1 - (hasDiagonalEnd(slice.type) ? slice.q1 - 1 - q : 0),
  };
}

/** The rows of a slice in [from, to), or undefined if there are none. */
export function clipQueries(slice: Slice, from: number, to: number): Slice | undefined {
  const q0 = Math.max(slice.q0, from);
  const q1 = Math.min(slice.q1, to);
  const k0 = slice.k0 + (hasDiagonalStart(slice.type) ? q0 - slice.q0 : 0);
  const k1 = slice.k1 - (hasDiagonalEnd(slice.type) ? slice.q1 - q1 : 0);
  if (q0 >= q1 || k0 >= k1 || (slice.type === "bidirectionalCausal" && k1 - k0 < q1 - q0)) return undefined;
  return { q0, q1, k0, k1, type: slice.type };
}

/**
 * The keys of a slice in [from, to): at most three slices. Above `left` the slanted left border lies before `from`, so
 * that the cut is straight there; from `right` on, the slanted right border lies beyond `to`.
 */
export function clipKeys(slice: Slice, from: number, to: number): Slice[] {
  const { q0, q1, k0, k1, type } = slice;
  const within = (q: number) => Math.min(q1, Math.max(q0, q));
  const left = hasDiagonalStart(type) ? within(q0 + from - k0) : q1;
  const right = hasDiagonalEnd(type) ? within(q1 - k1 + to) : q0;
  // Rows [q0, left) start at `from`, later ones at the slant; rows [q0, right) end at the slant, later ones at `to`.
  const borders = [q0, Math.min(left, right), Math.max(left, right), q1];
  const bands: Slice[] = [];
  for (let i = 0; i < 3; i++) {
    const [a, b] = [borders[i]!, borders[i + 1]!];
    const band = a < b ? clipBand(slice, { a, b }, { from, to, left, right }) : undefined;
    if (band) bands.push(band);
  }
  return bands;
}

interface Clip {
  readonly from: number;
  readonly to: number;
  readonly left: number;
  readonly right: number;
}

/** Rows [a, b) lie on one side of both `left` and `right`; rows that see nothing are dropped. */
function clipBand(slice: Slice, { a, b }: { a: number; b: number }, clip: Clip): Slice | undefined {
  const diagonalStart = hasDiagonalStart(slice.type) && a >= clip.left;
  const diagonalEnd = hasDiagonalEnd(slice.type) && a < clip.right;
  const k0 = diagonalStart ? slice.k0 + a - slice.q0 : Math.max(slice.k0, clip.from);
  const k1 = diagonalEnd ? slice.k1 - (slice.q1 - b) : Math.min(slice.k1, clip.to);
  const width = k1 - k0;
  if (width <= 0 || (diagonalStart && diagonalEnd && width < b - a)) return undefined;
  const q1 = diagonalStart && !diagonalEnd ? Math.min(b, a + width) : b;
  const q0 = diagonalEnd && !diagonalStart ? Math.max(a, b - width) : a;
  return { q0, q1, k0, k1, type: sliceTypeFor(diagonalStart, diagonalEnd) };
}

function sliceTypeFor(diagonalStart: boolean, diagonalEnd: boolean): SliceType {
  if (diagonalStart) return diagonalEnd ? "bidirectionalCausal" : "inverseCausal";
  return diagonalEnd ? "causal" : "full";
}
