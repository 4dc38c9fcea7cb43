import { isDense, isSame, originIn, sharedOf, within } from "./box.ts";
import { type Content, contentOf, type Entry, Piece, type Read, rowsAt } from "./content.ts";
import { nothing, type Sums } from "./sums.ts";
import {
  alike,
  isFill,
  isSum,
  type Kind,
  kindOf,
  payloadOf,
  type Rows,
  type Value,
  valueOf,
  type Zeros,
} from "./values.ts";

/** Something and the rows that it is of. */
export type Held = Pick<Entry, "value" | "rows">;

/** What sums are made with. */
export interface Joining {
  readonly sums: Sums;
  readonly zeros: Zeros;
}

/** Whether an entry's rows are those that its place in a view asks for: all of the columns of rows that begin at `expected`. */
export function fits({ at, sizes, rows }: Entry, expected: Rows): boolean {
  return (
    rows.batch === expected.batch + at[0]! &&
    rows.head === expected.head + at[1]! &&
    rows.column === expected.column + at[3]! &&
    rows.positions.equals(expected.positions.part(at[2]!, sizes[2]!))
  );
}

/** An entry of nothing, as one of the rows that are expected there. */
export function expectedAt({ at, sizes }: Entry, expected: Rows): Rows {
  return rowsAt({ value: valueOf("out"), rows: expected }, at, sizes);
}

/** Whether two things belong to the same sequences, heads, columns and positions. */
export function sameRows(a: Rows, b: Rows): boolean {
  return (
    a === b || (a.batch === b.batch && a.head === b.head && a.column === b.column && a.positions.equals(b.positions))
  );
}

/** What two things are when they are put together: parts of a state, or sums of products. */
export type Join = "out" | "lse" | "add";

/**
 * Both together, if that means anything. `out`, `lse`: of states of the same queries, which may have seen nothing, both of
 * them. `add`: sums of products, of which only gradients are; out and lse of parts of the keys do not simply add up.
 */
export function joinedHeld(x: Held, y: Held, how: Join, { sums, zeros }: Joining): Held | undefined {
  const kind: Kind = how === "add" ? "dq" : how;
  if (zeros.is(y.value, kind)) return x;
  if (zeros.is(x.value, kind)) return y;
  if (!isSum(x.value) || !alike(x.value, y.value) || !sameRows(x.rows, y.rows)) return undefined;
  const found = kindOf(x.value);
  if (how === "add" ? found === "out" || found === "lse" : found !== how) return undefined;
  const sum = sums.join(payloadOf(x.value), payloadOf(y.value));
  return { value: valueOf(found, sum), rows: x.rows };
}

/** The sum that a value is of a kind, nothing for what such sums begin with; undefined for what is no such sum. */
export function sumIn(value: Value, kind: Kind, zeros: Zeros): number | undefined {
  if (zeros.is(value, kind)) return nothing;
  return kindOf(value) === kind ? payloadOf(value) : undefined;
}

/** Two views of as many sequences, heads and rows, box by box. If the last axis differs (lse has no D), both keep theirs. */
export function* pairsOf(a: Read, b: Read, columns: boolean): Generator<readonly [Entry, Entry], void, undefined> {
  const axes = columns ? 4 : 3;
  for (const one of a.entries) {
    for (const two of b.entries) {
      if (one.at === two.at && same(one.sizes, two.sizes, axes)) {
        yield [one, two];
        continue;
      }
      if (areApart(one, two, axes)) continue;
      const at = one.at.map((c, i) => Math.max(c, two.at[i]!));
      const sizes = at.map((c, i) => Math.min(one.at[i]! + one.sizes[i]!, two.at[i]! + two.sizes[i]!) - c);
      yield [part(one, at, { sizes, axes }), part(two, at, { sizes, axes })];
    }
  }
}

function areApart(a: Entry, b: Entry, axes: number): boolean {
  for (let i = 0; i < axes; i++) {
    if (a.at[i]! >= b.at[i]! + b.sizes[i]! || b.at[i]! >= a.at[i]! + a.sizes[i]!) return true;
  }
  return false;
}

function same(a: readonly number[], b: readonly number[], axes: number): boolean {
  for (let i = 0; i < axes; i++) if (a[i] !== b[i]) return false;
  return true;
}

function part(
  entry: Entry,
  from: readonly number[],
  { sizes: to, axes }: { sizes: readonly number[]; axes: number },
): Entry {
  const at = axes === 4 ? from : from.with(3, entry.at[3]!);
  const sizes = axes === 4 ? to : to.with(3, entry.sizes[3]!);
  const within = at.map((c, i) => c - entry.at[i]!);
  return { value: entry.value, rows: rowsAt(entry, within, sizes), at, sizes };
}

/**
 * The sum, element by element, of messages: of gradients of the same rows, one sum; anything else is unknown after, and so is
 * what one of the messages lacks.
 */
export function summed(messages: readonly Content[], joining: Joining): Content {
  return messages.reduce((total, message) => {
    const pieces: Piece[] = [];
    for (const a of total.pieces) {
      for (const b of message.pieces) {
        for (const [x, y] of common(a, b)) {
          const held = joinedHeld(x, y, "add", joining);
          if (held) pieces.push(new Piece(held.value, held.rows, x.box));
        }
      }
    }
    return contentOf(pieces);
  });
}

/** The parts of two pieces that are the same elements. */
function common(a: Piece, b: Piece): (readonly [Piece, Piece])[] {
  if (isSame(a.box, b.box)) return [[a, b]];
  const from = originIn(a.box, b.box);
  if (from) {
    const { inOne, inOther, sizes } = sharedOf(a.box, b.box, from);
    return [[a.part({ at: inOne, sizes }), b.part({ at: inOther, sizes })]];
  }
  // A fill has no rows to be kept apart: what it shares with the other piece has the other's shape.
  if (isFill(b.value) && isDense(b.box))
    return within(a.box, b.box.low, b.box.high).map((each) => like(a.part(each), b));
  if (isFill(a.value) && isDense(a.box))
    return within(b.box, a.box.low, a.box.high).map((each) => like(b.part(each), a));
  return [];
}

function like(piece: Piece, fill: Piece): readonly [Piece, Piece] {
  return [piece, new Piece(fill.value, fill.rows, piece.box)];
}
