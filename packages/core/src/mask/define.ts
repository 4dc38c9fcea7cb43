import { expectValue, formatValue, OptionError } from "../errors.ts";
import type { Mask, Slice } from "./slice.ts";

/**
 * Returns the expression that creates a mask with the functions of a namespace, such as "masks."; undefined if it would
 * be too long.
 */
type ExpressionFormatter = (namespace: string) => string | undefined;

/** Formatters by identity of the mask, because a copy may have a different name or slices. */
const expressionFormatters = new WeakMap<Mask, ExpressionFormatter>();

/**
 * Creates a mask whose slices are computed from the lengths, without empty slices. The mask and its lists are immutable,
 * because calls share them. `formatExpression` is required if the name of the mask is not the expression that creates it.
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
 * Returns the expression that creates a mask, as written in a program. Undefined for a mask that was not created by
 * `masks`, for `fromDense`, and for lists of more than 4 096 different numbers.
 *
 * @example
 * ```ts
 * import { formatMask, masks } from "@mosaic/core";
 * const mask = masks.documents([3, 2, 2, 2, 2], masks.slidingWindow(2));
 * mask.name; // => "documents(5, slidingWindow(2))"
 * formatMask(mask); // => "masks.documents([3, ...Array(4).fill(2)], masks.slidingWindow(2))"
 * ```
 * @param namespace Prefix of each function name. Default "masks.".
 * @throws OptionError unless `mask` is a mask and `namespace` a string.
 */
export function formatMask(mask: Mask, namespace: string = "masks."): string | undefined {
  expectValue("formatMask", isMask(mask), "a Mask, such as masks.causal()", mask);
  expectValue("formatMask: namespace", typeof namespace === "string", 'text, such as "masks."', namespace);
  return expressionFormatters.get(mask)?.(namespace);
}

/** Maximum number of entries of a list in an expression. Longer lists are not readable. */
const MAX_LIST_ENTRIES = 4096;

/** Formats an array of numbers, with `fill` for repeated numbers; undefined if it is too long. */
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

/** Formats an object without its undefined values: "{ left: 1, right: 2 }". */
export function formatObject(values: Readonly<Record<string, unknown>>): string {
  const entries = Object.entries(values).filter(([, value]) => value !== undefined);
  return entries.length === 0 ? "{}" : `{ ${entries.map(([key, value]) => `${key}: ${String(value)}`).join(", ")} }`;
}

/** Formats a function call; undefined if one of the arguments is. */
export function formatCall(name: string, values: readonly (string | undefined)[]): string | undefined {
  return values.includes(undefined) ? undefined : `${name}(${values.join(", ")})`;
}

/** Throws an OptionError unless `count` is an integer ≥ `minimum`. */
export function checkCount(where: string, count: unknown, minimum: number): asserts count is number {
  if (Number.isSafeInteger(count) && (count as number) >= minimum) return;
  throw new OptionError({ where, expected: `an integer ≥ ${minimum}`, received: formatValue(count) });
}

/** Returns whether a value has the fields of a mask. Does not check the mask's contract. */
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
