const PALETTE = ["#3366cc", "#e08214", "#2a9d6f", "#b5446e", "#7a5cc4"] as const;

/** Grey, for what is beside the point. */
export const FAINT = "#69727f";
const INK = "#1c2330";
const FONT = "font-family=\"'DejaVu Sans', 'Helvetica Neue', Arial, sans-serif\"";

/** A whole picture: a title, a line below it, and what is drawn. */
export function svg(
  { width, height, title, subtitle }: { width: number; height: number; title: string; subtitle: string },
  body: readonly string[],
): string {
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ${FONT} role="img">`,
    `<title>${escape(title)}</title>`,
    rect({ x: 0, y: 0, width, height }, 'fill="#ffffff"'),
    text({ x: 32, y: 36 }, title, `font-size="20" font-weight="700" fill="${INK}"`),
    text({ x: 32, y: 58 }, subtitle, `font-size="12" fill="${FAINT}"`),
    ...body,
    "</svg>",
    "",
  ].join("\n");
}

/** A straight line. */
export function line([x1, y1, x2, y2]: readonly [number, number, number, number], rest: string): string {
  return `<line x1="${short(x1)}" y1="${short(y1)}" x2="${short(x2)}" y2="${short(y2)}" ${rest}/>`;
}

/** A line through points. */
export function curve(points: readonly (readonly [number, number])[], rest: string): string {
  return `<polyline points="${points.map(([x, y]) => `${short(x)},${short(y)}`).join(" ")}" fill="none" ${rest}/>`;
}

/** From values to pixels. */
export type Axis = (value: number) => number;

/** Evenly, from a range of values to a range of pixels. */
export function linearAxis([low, high]: readonly [number, number], [from, to]: readonly [number, number]): Axis {
  return (value) => from + ((value - low) / (high - low)) * (to - from);
}

/** By orders of magnitude. */
export function logAxis([low, high]: readonly [number, number], pixels: readonly [number, number]): Axis {
  const axis = linearAxis([Math.log10(low), Math.log10(high)], pixels);
  return (value) => axis(Math.log10(value));
}

/** Round values that divide a range into some 5 parts. */
export function ticks([low, high]: readonly [number, number], parts = 5): readonly number[] {
  const rough = (high - low) / parts;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((each) => each >= rough)!;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) =>
    Number(((first + i) * step).toPrecision(6)),
  );
}

/** Small words in grey. */
export function note(at: { x: number; y: number }, words: string, rest = ""): string {
  return text(at, words, `font-size="11" fill="${FAINT}" ${rest}`);
}

/** Words in ink. */
export function label(at: { x: number; y: number }, words: string, rest = ""): string {
  return text(at, words, `font-size="12" fill="${INK}" ${rest}`);
}

const short = (value: number): string => String(Number(value.toFixed(2)));

/** The i-th of five colours, which begin again. */
export function colour(i: number): string {
  return PALETTE[i % PALETTE.length]!;
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
