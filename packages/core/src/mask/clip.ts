import { checkNumber } from "../arguments.ts";
import { checkSlice, type Slice, type SliceType, slantsLeft, slantsRight } from "./slice.ts";

// The algebra of slices, after MagiAttention: a slice cut to a range of queries or keys is again slices.
// The left border of a row's keys moves right with each row if `slantsLeft(type)`, the right border if `slantsRight(type)`.

/** Keys [start, end) that row q of a slice sees; empty when start ≥ end. */
export function rowRange(slice: Slice, q: number): { readonly start: number; readonly end: number } {
  checkSlice("rowRange", slice);
  checkNumber("rowRange: q", q);
  return {
    start: slice.k0 + (slantsLeft(slice.type) ? q - slice.q0 : 0),
    end: slice.k1 - (slantsRight(slice.type) ? slice.q1 - 1 - q : 0),
  };
}

/** The rows of a slice in [from, to), or undefined if there are none. */
export function clipQueries(slice: Slice, from: number, to: number): Slice | undefined {
  checkClip("clipQueries", slice, from, to);
  const q0 = Math.max(slice.q0, from);
  const q1 = Math.min(slice.q1, to);
  const k0 = slice.k0 + (slantsLeft(slice.type) ? q0 - slice.q0 : 0);
  const k1 = slice.k1 - (slantsRight(slice.type) ? slice.q1 - q1 : 0);
  if (q0 >= q1 || k0 >= k1 || (slice.type === "bidirectionalCausal" && k1 - k0 < q1 - q0)) return undefined;
  return { q0, q1, k0, k1, type: slice.type };
}

/**
 * The keys of a slice in [from, to): at most three slices. Above `left` the slanted left border lies before `from`, so
 * that the cut is straight there; from `right` on, the slanted right border lies beyond `to`.
 */
export function clipKeys(slice: Slice, from: number, to: number): Slice[] {
  checkClip("clipKeys", slice, from, to);
  const { q0, q1, k0, k1, type } = slice;
  const within = (q: number) => Math.min(q1, Math.max(q0, q));
  const left = slantsLeft(type) ? within(q0 + from - k0) : q1;
  const right = slantsRight(type) ? within(q1 - k1 + to) : q0;
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

// oxlint-disable-next-line max-params -- the arguments that it checks
function checkClip(where: string, slice: Slice, from: number, to: number): void {
  checkSlice(where, slice);
  checkNumber(`${where}: from`, from);
  checkNumber(`${where}: to`, to);
}

interface Cut {
  readonly from: number;
  readonly to: number;
  readonly left: number;
  readonly right: number;
}

/** Rows [a, b) lie on one side of both `left` and `right`; rows that see nothing are dropped. */
function clipBand(slice: Slice, { a, b }: { a: number; b: number }, cut: Cut): Slice | undefined {
  const slantLeft = slantsLeft(slice.type) && a >= cut.left;
  const slantRight = slantsRight(slice.type) && a < cut.right;
  const k0 = slantLeft ? slice.k0 + a - slice.q0 : Math.max(slice.k0, cut.from);
  const k1 = slantRight ? slice.k1 - (slice.q1 - b) : Math.min(slice.k1, cut.to);
  const width = k1 - k0;
  if (width <= 0 || (slantLeft && slantRight && width < b - a)) return undefined;
  const q1 = slantLeft && !slantRight ? Math.min(b, a + width) : b;
  const q0 = slantRight && !slantLeft ? Math.max(a, b - width) : a;
  return { q0, q1, k0, k1, type: typeOf(slantLeft, slantRight) };
}

function typeOf(slantLeft: boolean, slantRight: boolean): SliceType {
  if (slantLeft) return slantRight ? "bidirectionalCausal" : "inverseCausal";
  return slantRight ? "causal" : "full";
}
