import { OptionError } from "@mosaic/core";

/** Throws an OptionError unless each option is a whole number ≥ 1. */
export function checkCounts(where: string, counts: Readonly<Record<string, number>>): void {
  for (const [name, value] of Object.entries(counts)) {
    if (Number.isSafeInteger(value) && value >= 1) continue;
    throw new OptionError({ where, expected: `${name} a whole number ≥ 1`, received: String(value) });
  }
}

/** Throws an OptionError unless `count` heads share `size` evenly. */
export function checkHeads(
  where: string,
  names: readonly [numHeads: string, size: string],
  count: number,
  size: number,
): void {
  if (size % count === 0) return;
  throw new OptionError({
    where,
    expected: `${names[0]} a divisor of ${names[1]}`,
    received: `${count} of ${size}`,
  });
}
