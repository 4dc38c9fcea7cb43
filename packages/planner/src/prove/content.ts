import type { Box, StridedLayout } from "../symbolic/strided-layout.ts";
import {
  complement,
  boxAt,
  differInStrides,
  isDense,
  isSame,
  origin,
  originIn,
  type BoxRange,
  subBox,
  intersect,
  volume,
  clipToRange,
} from "./box.ts";
import { isFill, isSource, type Rows, type Value } from "./values.ts";

// What a storage holds, as strided boxes of elements: intervals, never single elements. A box that is read through other
// strides than it was written through is not found, so whatever scrambles rows is refused.

/** Part of a view and what it holds; `rows` are those of its own origin. */
export interface Entry {
  readonly value: Value;
  readonly rows: Rows;
  /** Its origin and sizes in the view: batch, head, row, column. */
  readonly at: readonly number[];
  readonly sizes: readonly number[];
}

/** What a view shows. */
export interface ReadResult {
  readonly entries: readonly Entry[];
  /** Whether every element of the view is known. */
  readonly whole: boolean;
  /** The last check of this very read: what was expected, and what it found. */
  memo?: { readonly name: string; readonly positions: object; readonly answer: unknown } | undefined;
}

/** What a storage holds; never changed, so that one that is sent from rank to rank is looked at once. */
export interface Content {
  /** Boxes that share no element. */
  readonly pieces: readonly Piece[];
  /** The one piece that a view shows, if it is just that: so it is nearly always. */
  singlePiece(layout: StridedLayout): Piece | undefined;
  read(layout: StridedLayout): ReadResult;
  /** Entries in the place of what the view showed before. */
  write(layout: StridedLayout, entries: readonly Entry[]): Content;
  /** What a range of elements holds, counted from its first: what a message carries. */
  range(low: number, high: number): Content;
  /** This, further on by some elements. */
  shifted(by: number): readonly Piece[];
  /** A message in the place of what a dense view showed; `size` is that of the storage. */
  receive(layout: StridedLayout, message: Content, size: number): Content;
}

/** What holds these pieces. */
export function toContent(pieces: readonly Piece[]): Content {
  return pieces.length === 1 ? pieces[0]! : new Pieces(pieces);
}

/**
 * A box of memory and what lies in it. Also what a storage holds if that is all, and what a view shows that is just this box:
 * nearly everything that is written, sent and read is one of these, and no more objects are made for it.
 */
export class Piece implements Entry, ReadResult, Content {
  readonly value: Value;
  readonly rows: Rows;
  readonly box: Box;
  memo: ReadResult["memo"];

  constructor(value: Value, rows: Rows, box: Box) {
    this.value = value;
    this.rows = rows;
    this.box = box;
  }

  get at(): readonly number[] {
    return origin;
  }

  get whole(): boolean {
    return true;
  }

  get entries(): readonly Entry[] {
    return [this];
  }

  get pieces(): readonly Piece[] {
    return [this];
  }

  get sizes(): readonly number[] {
    return this.box.sizes;
  }

  part({ at, sizes }: BoxRange): Piece {
    if (at === origin && sizes === this.sizes) return this;
    return new Piece(this.value, rowsAt(this, at, sizes), subBox(this.box, at, sizes));
  }

  /** The same, further on by some elements. */
  shiftedBy(by: number): Piece {
    const { offset, sizes, strides } = this.box;
    return by === 0 ? this : new Piece(this.value, this.rows, boxAt(offset + by, sizes, strides));
  }

  singlePiece(layout: StridedLayout): Piece | undefined {
    return isSame(this.box, layout.box) ? this : undefined;
  }

  read(layout: StridedLayout): ReadResult {
    return isSame(this.box, layout.box) ? this : readPieces(layout, [this]);
  }

  write(layout: StridedLayout, entries: readonly Entry[]): Content {
    return new Pieces([this]).write(layout, entries);
  }

  range(low: number, high: number): Content {
    return low === 0 && this.box.high <= high ? this : new Pieces([this]).range(low, high);
  }

  shifted(by: number): readonly Piece[] {
    return [this.shiftedBy(by)];
  }

  receive(layout: StridedLayout, message: Content, size: number): Content {
    if (layout.offset === 0 && layout.size === size) return message;
    return new Pieces([this]).receive(layout, message, size);
  }
}

/** The rows of a part of something. A fill has none: its rows are nowhere, wherever it is cut. */
export function rowsAt(
  { value, rows }: Pick<Entry, "value" | "rows">,
  at: readonly number[],
  sizes: readonly number[],
): Rows {
  if (isFill(value)) return rows;
  const begins = at[0] === 0 && at[1] === 0 && at[2] === 0 && at[3] === 0;
  if (begins && sizes[2] === rows.positions.length) return rows;
  return {
    batch: rows.batch + at[0]!,
    head: rows.head + at[1]!,
    column: rows.column + at[3]!,
    positions: rows.positions.part(at[2]!, sizes[2]!),
  };
}

/** Several, or none. */
class Pieces implements Content {
  readonly pieces: readonly Piece[];
  #last: { readonly layout: StridedLayout; readonly read: ReadResult } | undefined;
  #reads: Map<StridedLayout, ReadResult> | undefined;

  constructor(pieces: readonly Piece[]) {
    this.pieces = pieces;
  }

  singlePiece(layout: StridedLayout): Piece | undefined {
    const found = this.#find(layout);
    if (found >= 0) return this.pieces[found];
    if (this.pieces.length < 2) return undefined;
    const read = this.read(layout);
    return read instanceof Piece ? read : undefined;
  }

  read(layout: StridedLayout): ReadResult {
    const found = this.#find(layout);
    if (found >= 0) return this.pieces[found]!;
    if (this.#last?.layout === layout) return this.#last.read;
    let read = this.#reads?.get(layout);
    if (!read) {
      read = readPieces(layout, this.pieces);
      // Most are read through one view only, and need no map.
      if (this.#last) this.#reads = (this.#reads ?? new Map<StridedLayout, ReadResult>()).set(layout, read);
      else this.#last = { layout, read };
    }
    return read;
  }

  write(layout: StridedLayout, entries: readonly Entry[]): Content {
    if (layout.size === 0) return this;
    const made = entries.map((entry) => toPiece(layout, entry));
    const found = this.#find(layout);
    if (found < 0) return toContent([...this.#outside(layout), ...made]);
    if (made.length === 1) return toContent(this.pieces.with(found, made[0]!));
    return toContent([...this.pieces.slice(0, found), ...this.pieces.slice(found + 1), ...made]);
  }

  range(low: number, high: number): Content {
    if (low === 0 && this.#endsBy(high)) return this;
    const inside: Piece[] = [];
    for (const piece of this.pieces) {
      if (piece.box.low >= high || low >= piece.box.high) continue;
      for (const part of clipToRange(piece.box, low, high)) inside.push(piece.part(part).shiftedBy(-low));
    }
    return toContent(inside);
  }

  #endsBy(high: number): boolean {
    for (let i = 0; i < this.pieces.length; i++) if (this.pieces[i]!.box.high > high) return false;
    return true;
  }

  shifted(by: number): readonly Piece[] {
    return by === 0 ? this.pieces : this.pieces.map((piece) => piece.shiftedBy(by));
  }

  receive(layout: StridedLayout, message: Content, size: number): Content {
    if (layout.offset === 0 && layout.size === size) return message;
    const outside = this.#outside(layout);
    return outside.length === 0 && layout.offset === 0
      ? message
      : toContent([...outside, ...message.shifted(layout.offset)]);
  }

  /** Where the piece is that a view shows, and nothing else; −1 if it shows part of one, or several. */
  #find({ box }: StridedLayout): number {
    for (let i = 0; i < this.pieces.length; i++) {
      const other = this.pieces[i]!.box;
      if (other.offset === box.offset && isSame(other, box)) return i;
    }
    return -1;
  }

  #outside(layout: StridedLayout): readonly Piece[] {
    const covered = layout.high - layout.low === layout.size;
    const isInside = ({ box: { low, high } }: Piece): boolean => layout.low <= low && high <= layout.high;
    if (covered && this.pieces.every(isInside)) return noPieces;
    // Messages mostly come to where nothing is yet.
    if (this.pieces.every(({ box: { low, high } }) => layout.low >= high || low >= layout.high)) return this.pieces;
    const outside: Piece[] = [];
    let left = layout.size;
    for (const piece of this.pieces) {
      if (left > 0) left -= addRemainder(outside, piece, layout);
      else outside.push(piece);
    }
    return outside;
  }
}

const noPieces: readonly Piece[] = [];

/** Memory that was never written. */
export const uninitialized: Content = new Pieces(noPieces);

function toPiece({ box }: StridedLayout, { value, rows, at, sizes }: Entry): Piece {
  return new Piece(value, rows, subBox(box, at, sizes));
}

function readPieces(layout: StridedLayout, pieces: readonly Piece[]): ReadResult {
  const entries: Entry[] = [];
  let known = 0;
  // Pieces are apart: once all of the view is known, no other shows in it.
  for (let i = 0; i < pieces.length && known < layout.size; i++) {
    const entry = visibleEntry(layout, pieces[i]!);
    if (!entry) continue;
    entries.push(entry);
    known += volume(entry.sizes);
  }
  const whole = known === layout.size;
  const joined = joinRows(joinColumns(entries, layout.box.sizes[3]!), layout.box.sizes[2]!);
  const [only] = joined;
  if (whole && joined.length === 1) return new Piece(only!.value, only!.rows, layout.box);
  return { entries: joined, whole };
}

/** Rows of an input that were put together again from several ranks' become one. */
function joinRows(entries: readonly Entry[], count: number): readonly Entry[] {
  const [first] = entries;
  if (!first || entries.length === 1 || !isSource(first.value)) return entries;
  const sorted = entries.toSorted((a, b) => a.at[2]! - b.at[2]!);
  let next = 0;
  for (const { value, rows, at, sizes } of sorted) {
    const alike = value === first.value && rows.batch === first.rows.batch && rows.head === first.rows.head;
    const whole = at[0] === 0 && at[1] === 0 && at[3] === 0 && rows.column === first.rows.column;
    const wide = sizes[0] === first.sizes[0] && sizes[1] === first.sizes[1] && sizes[3] === first.sizes[3];
    if (!alike || !whole || !wide || at[2] !== next) return entries;
    next += sizes[2]!;
  }
  if (next !== count) return entries;
  const [top, ...rest] = sorted.map(({ rows }) => rows.positions);
  const rows = { ...sorted[0]!.rows, positions: top!.concatenated(rest) };
  return [{ value: first.value, rows, at: origin, sizes: first.sizes.with(2, count) }];
}

/** What of a piece a view shows. */
function visibleEntry(layout: StridedLayout, piece: Piece): Entry | undefined {
  const { value, rows, box } = piece;
  if (layout.low >= box.high || box.low >= layout.high) return undefined;
  const { sizes } = layout.box;
  if (isSame(layout.box, box)) return { value, rows, at: origin, sizes };
  if (isFill(value) && isDense(box) && layout.low >= box.low && layout.high <= box.high) {
    return { value, rows, at: origin, sizes };
  }
  const from = originIn(layout.box, box);
  if (!from) return undefined;
  const shared = intersect(layout.box, box, from);
  return { value, rows: rowsAt(piece, shared.atSecond, shared.sizes), at: shared.atFirst, sizes: shared.sizes };
}

/** Rows that were put together again from ranges of columns become one: the same value of the same rows, side by side. */
function joinColumns(entries: Entry[], columns: number): Entry[] {
  if (entries.every(({ sizes }) => sizes[3] === columns)) return entries;
  const result: Entry[] = [];
  for (const entry of entries.toSorted((a, b) => a.at[3]! - b.at[3]!)) {
    const left = result.findIndex((other) => isAdjacentColumns(other, entry));
    if (left < 0) result.push(entry);
    else result[left] = { ...result[left]!, sizes: entry.sizes.with(3, result[left]!.sizes[3]! + entry.sizes[3]!) };
  }
  return result;
}

function isAdjacentColumns(a: Entry, b: Entry): boolean {
  for (let i = 0; i < 3; i++) if (a.at[i] !== b.at[i] || a.sizes[i] !== b.sizes[i]) return false;
  if (a.value !== b.value || a.at[3]! + a.sizes[3]! !== b.at[3]) return false;
  if (isFill(a.value)) return true;
  const [x, y] = [a.rows, b.rows];
  const follows = y.column === x.column + a.sizes[3]!;
  return follows && x.batch === y.batch && x.head === y.head && x.positions.equals(y.positions);
}

/**
 * Adds what is left of a piece outside a view: nothing when they overlap in a way that no box describes. Returns how many
 * elements of the view were known to be the piece's.
 */
function addRemainder(outside: Piece[], piece: Piece, layout: StridedLayout): number {
  const { box } = piece;
  if (layout.low >= box.high || box.low >= layout.high) {
    outside.push(piece);
    return 0;
  }
  const dense = layout.high - layout.low === layout.size;
  if (dense && layout.low <= box.low && box.high <= layout.high) return volume(box.sizes);
  if (dense && isDense(box)) {
    for (const part of clipToRange(box, box.low, layout.low)) outside.push(piece.part(part));
    for (const part of clipToRange(box, layout.high, box.high)) outside.push(piece.part(part));
    return Math.min(layout.high, box.high) - Math.max(layout.low, box.low);
  }
  const from = originIn(layout.box, box);
  if (from) {
    const { atSecond, sizes } = intersect(layout.box, box, from);
    for (const part of complement(box.sizes, { at: atSecond, sizes })) outside.push(piece.part(part));
    return volume(sizes);
  }
  if (!differInStrides(layout.box, box)) outside.push(piece);
  return 0;
}
