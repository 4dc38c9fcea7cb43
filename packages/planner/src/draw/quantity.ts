// Quantities formatted with three digits, also for code that runs in browsers.

/** Formats bytes in decimal units. */
export function bytesText(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  // Values that would be rounded to 1000 have the next unit.
  const fittingUnit = units.findIndex((_, i) => value / 1000 ** i < 999.5);
  const unit = fittingUnit < 0 ? units.length - 1 : fittingUnit;
  return `${Number((value / 1000 ** unit).toPrecision(3))} ${units[unit]}`;
}

/** Formats a time in a suitable unit. */
export function secondsText(value: number): string {
  const roundToDigits = (scaledValue: number): number => Number(scaledValue.toPrecision(3));
  if (value === 0) return "0 s";
  if (value < 0.9995e-3) return `${roundToDigits(value * 1e6)} µs`;
  return value < 0.9995 ? `${roundToDigits(value * 1000)} ms` : `${roundToDigits(value)} s`;
}

/** Formats a share as a percentage. */
export function percentText(share: number): string {
  return `${Number((share * 100).toPrecision(3))} %`;
}
