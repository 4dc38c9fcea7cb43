import { expectValue, formatValue, OptionError } from "../errors.ts";
import type { Mask, Slice } from "./slice.ts";

/** A mask whose slices are computed from the lengths; empty ones are left out. */
export function defineMask(name: string, slices: (queries: number, keys: number) => readonly Slice[]): Mask {
  return {
    name,
    slices(queries, keys) {
      for (const each of [queries, keys]) checkCount(`${name}: slices`, each, 0);
      return slices(queries, keys).filter((slice) => slice.q0 < slice.q1 && slice.k0 < slice.k1);
    },
  };
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
