import type { Span } from "@mosaic/core";
import { type Entry, type Read, rowsAt } from "./content.ts";
import { describe, positionsText, type Rows, type Sum, type SumName, type Value } from "./values.ts";

/** Rows that a view is expected to have: positions in order, and the sequence and head at its origin. */
export interface Expected {
  readonly spans: readonly Span[];
  readonly batch: number;
  readonly head: number;
}

/** The sum of nothing. */
export const nothing: Sum = {};

/** Whether a fill is what a sum begins with. */
export function isZero(value: Value, name: SumName): boolean {
  return value.kind === "fill" && value.value === (name === "lse" ? "-Infinity" : "0");
}

/** The positions of `count` rows from row `first` on. */
export function positionsOf(spans: readonly Span[], first: number, count: number): Span[] {
  const found: Span[] = [];
  let row = 0;
  for (const { start, length, step } of spans) {
    const from = Math.max(first, row);
    const end = Math.min(first + count, row + length);
    if (from < end) found.push({ start: start + (from - row) * step, length: end - from, step });
    row += length;
  }
  return found;
}

/** Whether an entry's rows are the positions that its place in a view asks for. */
export function fits({ at, sizes, rows }: Entry, { spans, batch, head }: Expected): boolean {
  if (rows.batch - at[0]! !== batch || rows.head - at[1]! !== head) return false;
  let next = rows.start;
  for (const { start, length, step } of positionsOf(spans, at[2]!, sizes[2]!)) {
    if (start !== next || (length > 1 && step !== rows.step)) return false;
    next += length * rows.step;
  }
  return true;
}

/**
 * The entries of an accumulator after something was added to all of its rows; a string says what is wrong with it. What
 * was filled with zeros gets its positions here.
 */
export function accumulated(
  read: Read,
  name: SumName,
  expected: Expected,
  add: (sum: Sum) => Sum,
): readonly Entry[] | string {
  if (!read.whole) return `${name} is not initialised throughout`;
  const entries: Entry[] = [];
  for (const entry of read.entries) {
    const { value } = entry;
    if (value.kind === "sum" && value.name === name) {
      if (!fits(entry, expected)) return `${name} has other rows than ${positionsText(expected.spans)}`;
      entries.push({ ...entry, value: { kind: "sum", name, sum: add(value.sum) } });
    } else if (isZero(value, name)) {
      const filled: Value = { kind: "sum", name, sum: add(nothing) };
      entries.push(...cutRows(entry, expected).map((each) => ({ ...each, value: filled })));
    } else return `${name} holds ${describe(value)}`;
  }
  return entries;
}

/** An entry cut into stretches of one step each, with the rows that are expected there. */
export function cutRows({ at, sizes, value }: Entry, { spans, batch, head }: Expected): Entry[] {
  let first = at[2]!;
  return positionsOf(spans, first, sizes[2]!).map(({ start, length, step }) => {
    const rows: Rows = { batch: batch + at[0]!, head: head + at[1]!, start, step };
    const entry = { value, rows, at: at.with(2, first), sizes: sizes.with(2, length) };
    first += length;
    return entry;
  });
}

/** Two views of the same shape, box by box. */
export function* pairsOf(a: Read, b: Read): Generator<readonly [Entry, Entry], void, undefined> {
  for (const one of a.entries) {
    for (const two of b.entries) {
      if (one.at === two.at && sameBut(one.sizes, two.sizes)) {
        yield [one, two];
        continue;
      }
      const at = one.at.map((c, i) => Math.max(c, two.at[i]!));
      const sizes = at.map((c, i) => Math.min(one.at[i]! + one.sizes[i]!, two.at[i]! + two.sizes[i]!) - c);
      // The last axis may differ: lse has no D.
      if (sizes[0]! > 0 && sizes[1]! > 0 && sizes[2]! > 0) yield [part(one, at, sizes), part(two, at, sizes)];
    }
  }
}

/** Whether sizes are equal, the last aside. */
function sameBut(a: readonly number[], b: readonly number[]): boolean {
  return a[0] === b[0] && a[1] === b[1] && a[2] === b[2];
}

function part({ value, rows, at, sizes }: Entry, from: readonly number[], to: readonly number[]): Entry {
  const within = from.map((c, i) => c - at[i]!);
  return { value, rows: rowsAt(rows, within), at: from, sizes: to.with(3, sizes[3]!) };
}

/** Whether two entries belong to the same sequences, heads and positions. */
export function sameRows(a: Entry, b: Entry): boolean {
  const { rows } = b;
  const steps = a.sizes[2] === 1 || a.rows.step === rows.step;
  return a.rows.batch === rows.batch && a.rows.head === rows.head && a.rows.start === rows.start && steps;
}
