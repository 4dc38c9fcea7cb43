import type { Box, Look } from "../symbolic/names.ts";
import type { Rows, Value } from "./values.ts";

// What a storage holds, as strided boxes [batch, heads, rows, D] of elements: intervals, never single elements. A box that
// is read through other strides than it was written through is not found, so whatever scrambles rows is refused.

/** A box of memory and what lies in it; `rows` belong to its origin. */
export interface Piece extends Box {
  readonly value: Value;
  readonly rows: Rows;
  readonly low: number;
  readonly high: number;
}

/** Part of a view and what it holds; `rows` are those of its own origin. */
export interface Entry {
  readonly value: Value;
  readonly rows: Rows;
  /** Its origin and sizes in the view: batch, head, row, and the rest. */
  readonly at: readonly number[];
  readonly sizes: readonly number[];
}

/** What a view shows. */
export interface Read {
  readonly entries: readonly Entry[];
  /** Whether every element of the view is known. */
  readonly whole: boolean;
  /** The last check of this very read: what was expected, and what it found. */
  memo?: { readonly name: string; readonly spans: object; readonly answer: unknown };
}

/** What a storage holds; never changed, so that one that is sent from rank to rank is looked at once. */
export class Content {
  static readonly empty: Content = new Content([]);
  readonly pieces: readonly Piece[];
  #last: { readonly look: Look; readonly read: Read } | undefined;
  #reads: Map<Look, Read> | undefined;

  constructor(pieces: readonly Piece[]) {
    this.pieces = pieces;
  }

  read(look: Look): Read {
    if (this.#last?.look === look) return this.#last.read;
    let read = this.#reads?.get(look);
    if (!read) {
      const entries = this.pieces.map((piece) => entryOf(look, piece)).filter((entry) => entry !== undefined);
      const known = entries.reduce((sum, { sizes }) => sum + volume(sizes), 0);
      read = { entries, whole: known === look.size };
      // Most are read through one view only, and need no map.
      if (this.#last) this.#reads = (this.#reads ?? new Map<Look, Read>()).set(look, read);
      else this.#last = { look, read };
    }
    return read;
  }

  /** Entries in the place of what the view showed before. */
  write(look: Look, entries: readonly Entry[]): Content {
    if (look.size === 0) return this;
    return new Content([...this.#outside(look), ...entries.map((entry) => pieceOf(look, entry))]);
  }

  /** What a dense view shows, as a message: counted from its first element. */
  message(look: Look): Content {
    return this.range(look.low, look.high);
  }

  /** What a range of elements holds, counted from its first. */
  range(low: number, high: number): Content {
    if (low === 0 && this.pieces.every((piece) => piece.high <= high)) return this;
    const inside = this.pieces.map((piece) => cut(piece, { low, high })).filter((piece) => piece !== undefined);
    return new Content(inside.map((piece) => moved(piece, -low)));
  }

  #outside(look: Look): readonly Piece[] {
    const covered = look.high - look.low === look.size;
    if (covered && this.pieces.every(({ low, high }) => look.low <= low && high <= look.high)) return none;
    return this.pieces.flatMap((piece) => rest(piece, look));
  }

  /** This, further on by some elements. */
  shifted(by: number): readonly Piece[] {
    return by === 0 ? this.pieces : this.pieces.map((piece) => moved(piece, by));
  }

  /** A message in the place of what a dense view showed; `size` is that of the storage. */
  receive(look: Look, message: Content, size: number): Content {
    if (look.offset === 0 && look.size === size) return message;
    return new Content([...this.#outside(look), ...message.shifted(look.offset)]);
  }
}

const none: readonly Piece[] = [];
/** The origin of entries that begin where their view does: one object, so that it is quickly recognised. */
const origin: readonly number[] = [0, 0, 0, 0];

export function volume(sizes: readonly number[]): number {
  return sizes[0]! * sizes[1]! * sizes[2]! * sizes[3]!;
}

/** The rows at a place within a box. */
export function rowsAt({ batch, head, start, step }: Rows, at: readonly number[]): Rows {
  return { batch: batch + at[0]!, head: head + at[1]!, start: start + at[2]! * step, step };
}

function isDense({ low, high, sizes }: Piece): boolean {
  return high - low === volume(sizes);
}

function pieceOf({ box }: Look, { at, sizes, value, rows }: Entry): Piece {
  const { strides } = box;
  const offset = at === origin ? box.offset : box.offset + dot(at, strides);
  return { value, rows, offset, sizes, strides, low: offset, high: offset + reach(sizes, strides) };
}

function dot(at: readonly number[], strides: readonly number[]): number {
  return at[0]! * strides[0]! + at[1]! * strides[1]! + at[2]! * strides[2]! + at[3]! * strides[3]!;
}

function reach(sizes: readonly number[], strides: readonly number[]): number {
  return sizes.reduce((sum, size, i) => sum + (size - 1) * strides[i]!, 1);
}

function moved(piece: Piece, by: number): Piece {
  return { ...piece, offset: piece.offset + by, low: piece.low + by, high: piece.high + by };
}

/** What of a piece a view shows. */
function entryOf(look: Look, piece: Piece): Entry | undefined {
  if (look.low >= piece.high || piece.low >= look.high) return undefined;
  const { sizes } = look.box;
  if (isSame(look.box, piece)) return { value: piece.value, rows: piece.rows, at: origin, sizes };
  if (piece.value.kind === "fill" && isDense(piece) && look.low >= piece.low && look.high <= piece.high) {
    return { value: piece.value, rows: piece.rows, at: origin, sizes };
  }
  const from = originIn(look.box, piece);
  if (!from || cutsRows(look.box, piece, from)) return undefined;
  // `from` is where the view's first element lies in the piece; turned round, where the piece begins in the view.
  const at = from.map((c) => Math.max(0, -c));
  const end = from.map((c, i) => Math.min(sizes[i]!, piece.sizes[i]! - c));
  const within = at.map((a, i) => a + from[i]!);
  return { value: piece.value, rows: rowsAt(piece.rows, within), at, sizes: end.map((e, i) => e - at[i]!) };
}

/** Whether a view is just what was written. */
function isSame({ offset, sizes, strides }: Box, piece: Piece): boolean {
  if (offset !== piece.offset) return false;
  for (let i = 0; i < 4; i++) {
    if (sizes[i] !== piece.sizes[i] || (sizes[i]! > 1 && strides[i] !== piece.strides[i])) return false;
  }
  return true;
}

/** Coordinates of a box's origin in a piece that it meets; undefined if they share no element or differ in strides. */
function originIn(box: Box, piece: Piece): number[] | undefined {
  const axes: Axis[] = [];
  for (let i = 0; i < 4; i++) {
    const [a, b] = [box.sizes[i]!, piece.sizes[i]!];
    if (a === 1 && b === 1) continue;
    if (a > 1 && b > 1 && box.strides[i] !== piece.strides[i]) return undefined;
    axes.push({ i, stride: b > 1 ? piece.strides[i]! : box.strides[i]!, from: 1 - a, to: b - 1 });
  }
  axes.sort((a, b) => b.stride - a.stride);
  const origin = [0, 0, 0, 0];
  return solve(axes, box.offset - piece.offset, origin) ? origin : undefined;
}

interface Axis {
  readonly i: number;
  readonly stride: number;
  readonly from: number;
  readonly to: number;
}

/** Writes distance as Σ c·stride with every c in its range, if it can be. */
function solve(axes: readonly Axis[], distance: number, origin: number[], depth = 0): boolean {
  const axis = axes[depth];
  if (!axis) return distance === 0;
  if (axis.stride <= 0) return false;
  const low = Math.floor(distance / axis.stride);
  for (const c of [low, low + 1]) {
    if (c < axis.from || c > axis.to) continue;
    origin[axis.i] = c;
    if (solve(axes, distance - c * axis.stride, origin, depth + 1)) return true;
  }
  return false;
}

/** What is left of a piece outside a view: nothing when they overlap in a way that no box describes. */
function rest(piece: Piece, look: Look): Piece[] {
  if (look.low >= piece.high || piece.low >= look.high) return [piece];
  const dense = look.high - look.low === look.size;
  if (dense && look.low <= piece.low && piece.high <= look.high) return [];
  if (dense && isDense(piece)) return outside(piece, look);
  const origin = originIn(look.box, piece);
  if (!origin) return differ(look.box, piece) ? [] : [piece];
  return cutsRows(look.box, piece, origin) ? [] : cutAround(piece, origin, look.box.sizes);
}

/** Whether strides differ, so that elements may be shared although no box describes which. */
function differ(box: Box, piece: Piece): boolean {
  return box.sizes.some((size, i) => size > 1 && piece.sizes[i]! > 1 && box.strides[i] !== piece.strides[i]);
}

/** Whether a view shows rows in part only: such parts are not followed. */
function cutsRows({ sizes }: Box, piece: Piece, origin: readonly number[]): boolean {
  return piece.value.kind !== "fill" && (origin[3] !== 0 || sizes[3] !== piece.sizes[3]);
}

/** The parts of a dense piece before and after a dense view. */
function outside(piece: Piece, look: Look): Piece[] {
  const before = cut(piece, { low: piece.low, high: look.low });
  const after = cut(piece, { low: look.high, high: piece.high });
  return [before, after].filter((part) => part !== undefined);
}

/** The part of a piece within a range of elements, if it is a box: whole, or cut along its outermost axis. */
function cut(piece: Piece, { low, high }: Pick<Look, "low" | "high">): Piece | undefined {
  if (low <= piece.low && piece.high <= high) return piece;
  if (low >= piece.high || piece.low >= high || low >= high) return undefined;
  const axes = [0, 1, 2, 3].filter((i) => piece.sizes[i]! > 1);
  const outer = axes.reduce((best, i) => (piece.strides[i]! > piece.strides[best]! ? i : best), axes[0]!);
  if (outer === 3 && piece.value.kind !== "fill") return undefined;
  const stride = piece.strides[outer]!;
  const first = Math.max(0, Math.ceil((low - piece.low) / stride));
  const inner = piece.high - piece.low - (piece.sizes[outer]! - 1) * stride;
  const end = Math.min(piece.sizes[outer]!, Math.floor((high - piece.low - inner) / stride) + 1);
  return end > first ? part(piece, outer, first, end) : undefined;
}

// oxlint-disable-next-line max-params -- an axis and a range of it
function part(piece: Piece, axis: number, first: number, end: number): Piece {
  const at = [0, 0, 0, 0];
  at[axis] = first;
  const sizes = piece.sizes.with(axis, end - first);
  const offset = piece.offset + first * piece.strides[axis]!;
  return {
    ...piece,
    rows: rowsAt(piece.rows, at),
    offset,
    sizes,
    low: offset,
    high: offset + reach(sizes, piece.strides),
  };
}

/** The parts of a piece around the box whose origin lies at `origin` in it. */
function cutAround(piece: Piece, origin: readonly number[], sizes: readonly number[]): Piece[] {
  const parts: Piece[] = [];
  let core = piece;
  for (let axis = 0; axis < 4; axis++) {
    const first = Math.max(0, origin[axis]!);
    const end = Math.min(piece.sizes[axis]!, origin[axis]! + sizes[axis]!);
    if (first > 0) parts.push(part(core, axis, 0, first));
    if (end < piece.sizes[axis]!) parts.push(part(core, axis, end, piece.sizes[axis]!));
    core = part(core, axis, first, end);
  }
  return parts;
}
