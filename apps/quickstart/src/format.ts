/** 48 502, with thin spaces. */
export function groupDigits(value: number): string {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u2009");
}

/** Bytes in decimal units, three digits. */
export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const unit = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(1, value)) / 3)));
  return `${Number((value / 1000 ** unit).toPrecision(3))} ${units[unit]}`;
}

/** A time, three digits, in milliseconds below a second. */
export function seconds(value: number): string {
  if (value === 0) return "0 s";
  return value < 0.9995 ? `${Number((value * 1000).toPrecision(3))} ms` : `${Number(value.toPrecision(3))} s`;
}

/** A share as a percentage. */
export function percent(share: number): string {
  return `${Number((share * 100).toPrecision(3))} %`;
}
