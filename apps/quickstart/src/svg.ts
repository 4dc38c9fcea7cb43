const PALETTE = ["#3366cc", "#e08214", "#2a9d6f", "#b5446e", "#7a5cc4", "#8c6d46", "#1f9bb3", "#a3a124"];

export const FAINT = "#69727f";

/** A rank's colour: eight chosen ones, then hues a golden angle apart. */
export function colour(rank: number): string {
  return PALETTE[rank] ?? `hsl(${Math.round((rank * 137.508) % 360)} 48% ${rank % 2 === 0 ? 42 : 54}%)`;
}

export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export function rect({ x, y, width, height }: Box, rest: string): string {
  return `<rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}" ${rest}/>`;
}

/** Text whose baseline begins, or ends, or has its middle, at (x, y). */
export function text({ x, y }: Pick<Box, "x" | "y">, words: string, rest: string): string {
  return `<text x="${short(x)}" y="${short(y)}" ${rest}>${escape(words)}</text>`;
}

/** What is shown when the pointer rests on `body`. */
export function tipped(tip: string, body: readonly string[]): string {
  return `<g><title>${escape(tip)}</title>${body.join("")}</g>`;
}

export function escape(words: string): string {
  return words.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

const short = (value: number): string => String(Number(value.toFixed(2)));
