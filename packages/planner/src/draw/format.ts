import { demand } from "../options.ts";
/**
 * Bytes in decimal units, three digits.
 *
 * @example
 * ```ts
 * import { formatBytes } from "@mosaic/planner";
 * formatBytes(1_234_567); // => "1.23 MB"
 * ```
 */
export function formatBytes(value: number): string {
  demand("formatBytes", typeof value === "number", "a number", value);
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  const unit = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(1, value)) / 3)));
  return `${Number((value / 1000 ** unit).toPrecision(3))} ${units[unit]}`;
}

/**
 * A time, three digits, in the unit that suits it.
 *
 * @example
 * ```ts
 * import { formatSeconds } from "@mosaic/planner";
 * formatSeconds(0.01234); // => "12.3 ms"
 * formatSeconds(0); // => "0 s"
 * ```
 */
export function formatSeconds(value: number): string {
  demand("formatSeconds", typeof value === "number", "a number", value);
  const digits = (scaled: number): number => Number(scaled.toPrecision(3));
  if (value === 0) return "0 s";
  if (value < 0.9995e-3) return `${digits(value * 1e6)} µs`;
  return value < 0.9995 ? `${digits(value * 1000)} ms` : `${digits(value)} s`;
}

/** A share as a percentage. */
export function formatShare(share: number): string {
  demand("formatShare", typeof share === "number", "a number", share);
  return `${Number((share * 100).toPrecision(3))} %`;
}
