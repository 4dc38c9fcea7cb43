import { expectValue, formatValue, OptionError } from "../errors.ts";
import type { Mask, Slice } from "./slice.ts";

/** The expression that makes a mask of what is in a namespace, such as "masks."; undefined if it is too long to be written. */
type ExpressionFormatter = (namespace: string) => string | undefined;

/** By identity: a copy of a mask with another name or other slices is another mask. */
const expressionFormatters = new WeakMap<Mask, ExpressionFormatter>();

/**
 * A mask whose slices are computed from the lengths; empty ones are left out. It is immutable, and so are its lists: calls share them. `formatExpression` is for those whose name is not the
 * expression that makes them.
 */
export function defineMask(
  name: string,
  slices: (queries: number, keys: number) => readonly Slice[],
  formatExpression: ExpressionFormatter = (namespace) => `${namespace}${name}${name.includes("(") ? "" : "()"}`,
): Mask {
  const mask: Mask = Object.freeze<Mask>({
    name,
    slices(queries, keys) {
      for (const each of [queries, keys]) checkCount(`${name}: slices`, each, 0);
      const nonEmptySlices = slices(queries, keys).filter((slice) => slice.q0 < slice.q1 && slice.k0 < slice.k1);
      return Object.freeze(nonEmptySlices);
    },
  });
  expressionFormatters.set(mask, formatExpression);
  return mask;
}

/**
 * The expression that makes a mask, as one would write it in a program; undefined for a mask that none of `masks` made, for
 * `fromDense`, and for lists of more than 4 096 different numbers.
 *
 * @example
 * ```ts
 * import { formatMask, masks } from "@mosaic/core";
 * const mask = masks.documents([3, 2, 2, 2, 2], masks.slidingWindow(2));
 * mask.name; // => "documents(5, slidingWindow(2))"
 * formatMask(mask); // => "masks.documents([3, ...Array(4).fill(2)], masks.slidingWindow(2))"
 * ```
 * @param namespace What stands before the name of each function. Default "masks.".
 * @throws OptionError for what is no mask, and for a namespace that is no text.
 */
export function formatMask(mask: Mask, namespace: string = "masks."): string | undefined {
  expectValue("formatMask", isMask(mask), "a Mask, such as masks.causal()", mask);
  expectValue("formatMask: namespace", typeof namespace === "string", 'text, such as "masks."', namespace);
  return expressionFormatters.get(mask)?.(namespace);
}

/** Longer lists are for no one to read. */
const MAX_LIST_ENTRIES = 4096;

/** An array of numbers, with `fill` for a number that repeats; undefined if it is too long. */
export function formatList(numbers: readonly number[]): string | undefined {
  const runs: { value: number; count: number }[] = [];
  for (const value of numbers) {
    const lastRun = runs.at(-1);
    if (lastRun?.value === value) lastRun.count++;
    else if (runs.push({ value, count: 1 }) > MAX_LIST_ENTRIES) return undefined;
  }
  const entries = runs.map(({ value, count }) => {
    if (count >= MIN_FILLED_ENTRIES) return `...Array(${count}).fill(${value})`;
    return new Array<number>(count).fill(value).join(", ");
  });
  return `[${entries.join(", ")}]`;
}

const MIN_FILLED_ENTRIES = 4;

/** An object of what is defined: "{ left: 1, right: 2 }". */
export function formatObject(values: Readonly<Record<string, unknown>>): string {
  const entries = Object.entries(values).filter(([, value]) => value !== undefined);
  return entries.length === 0 ? "{}" : `{ ${entries.map(([key, value]) => `${key}: ${String(value)}`).join(", ")} }`;
}

/** A call of a function; undefined if one of the arguments is. */
export function formatCall(name: string, values: readonly (string | undefined)[]): string | undefined {
  return values.includes(undefined) ? undefined : `${name}(${values.join(", ")})`;
}

/** Throws an OptionError unless `count` is an integer, not below `least`. */
export function checkCount(where: string, count: unknown, minimum: number): asserts count is number {
  if (Number.isSafeInteger(count) && (count as number) >= minimum) return;
  throw new OptionError({ where, expected: `an integer ≥ ${minimum}`, received: formatValue(count) });
}

/** Whether a value has what a mask has; not whether it keeps what a mask promises. */
export function isMask(value: unknown): value is Mask {
  const { slices, name } = (value ?? {}) as Partial<Mask>;
  return typeof slices === "function" && typeof name === "string";
}

/** Throws an OptionError unless all lengths are integers ≥ 0; returns a copy. */
export function checkLengths(where: string, lengths: unknown): readonly number[] {
  expectValue(where, Array.isArray(lengths), "an array of lengths", lengths);
  const values = [...(lengths as readonly unknown[])];
  for (const [i, length] of values.entries()) checkCount(`${where}: length ${i}`, length, 0);
  return values as number[];
}
