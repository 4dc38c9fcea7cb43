// Parses option values that are numbers with units.
import { expectValue, formatValue } from "@mosaic/core";
import { UsageError } from "./load.ts";

const factorByCountUnit: Readonly<Record<string, number>> = { "": 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30 };

/**
 * Parses 4096, 128k or 1M. k, M and G are powers of 1024, as in lengths of sequences. `name` is that of the option.
 *
 * @example
 * ```ts
 * import { parseCount } from "@mosaic/strategies/command-line";
 * parseCount("tokens", "128k"); // => 131072
 * ```
 * @throws UsageError unless it is an integer of at least `minimum`.
 */
export function parseCount(name: string, text: string, minimum = 1): number {
  expectValue("parseCount: minimum", Number.isSafeInteger(minimum), "an integer", minimum);
  const input = formatText(text);
  const match = /^(\d+(?:\.\d+)?)([kmg]?)$/i.exec(input.replaceAll("_", ""));
  const value = match ? Number(match[1]) * factorByCountUnit[match[2]!.toLowerCase()]! : Number.NaN;
  if (Number.isSafeInteger(value) && value >= minimum) return value;
  throw new UsageError(
    `--${formatText(name)}: expected an integer ≥ ${minimum}, such as 4096, 128k or 1M, received "${input}"`,
  );
}

/** Returns a string unchanged, and any other value, passed without type checks, as errors show it. */
export function formatText(text: unknown): string {
  return typeof text === "string" ? text : formatValue(text);
}

const factorByByteUnit: Readonly<Record<string, number>> = {
  B: 1,
  kB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  KiB: 2 ** 10,
  MiB: 2 ** 20,
  GiB: 2 ** 30,
  TiB: 2 ** 40,
};

/** Parses 80GB or 512MiB. */
export function parseBytes(name: string, text: string): number {
  const match = /^(\d+(?:\.\d+)?) ?([kKMGT]?i?B)?$/.exec(text);
  const value = match ? Number(match[1]) * (factorByByteUnit[match[2] ?? "B"] ?? Number.NaN) : Number.NaN;
  if (value > 0 && Number.isFinite(value)) return value;
  throw new UsageError(`--${name}: expected an amount of memory > 0, such as 80GB or 512MiB, received "${text}"`);
}
