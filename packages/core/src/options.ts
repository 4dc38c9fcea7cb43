import { OptionError } from "./errors.ts";

/** Throws an OptionError that names the legal options if there is any other: nothing is ignored in silence. */
export function checkOptionNames(where: string, options: object, legal: readonly string[]): void {
  const unknown = Object.keys(options).filter((name) => !legal.includes(name));
  if (unknown.length === 0) return;
  throw new OptionError({
    where,
    expected: `options among ${legal.join(", ")}`,
    received: unknown.map((name) => `"${name}"`).join(", "),
  });
}

/** Throws an OptionError unless the option is a whole number ≥ 1. */
export function checkPositive(where: string, name: string, value: number): void {
  if (Number.isSafeInteger(value) && value >= 1) return;
  throw new OptionError({ where, expected: `${name} a whole number ≥ 1`, received: String(value) });
}
