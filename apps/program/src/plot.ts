import { escape, rect, formatCoordinate, text } from "@mosaic/planner/svg";

const SERIES_COLORS = ["#3366cc", "#e08214", "#2a9d6f", "#b5446e", "#7a5cc4"] as const;

/** Gray, for secondary text and lines. */
export const TEXT_GRAY = "#69727f";
const TEXT_COLOR = "#1c2330";
const FONT = "font-family=\"'DejaVu Sans', 'Helvetica Neue', Arial, sans-serif\"";

/** Returns an SVG document with a title, a subtitle and the given elements. */
export function svg(
  { width, height, title, subtitle }: { width: number; height: number; title: string; subtitle: string },
  body: readonly string[],
): string {
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ${FONT} role="img">`,
    `<title>${escape(title)}</title>`,
    rect({ x: 0, y: 0, width, height }, 'fill="#ffffff"'),
    text(32, 36, title, `font-size="20" font-weight="700" fill="${TEXT_COLOR}"`),
    text(32, 58, subtitle, `font-size="12" fill="${TEXT_GRAY}"`),
    ...body,
    "</svg>",
    "",
  ].join("\n");
}

/** Returns a straight line. */
export function svgLine([x1, y1, x2, y2]: readonly [number, number, number, number], attributes: string): string {
  return `<line x1="${formatCoordinate(x1)}" y1="${formatCoordinate(y1)}" x2="${formatCoordinate(x2)}" y2="${formatCoordinate(y2)}" ${attributes}/>`;
}

/** Returns a line through points. */
export function polyline(points: readonly (readonly [number, number])[], attributes: string): string {
  return `<polyline points="${points.map(([x, y]) => `${formatCoordinate(x)},${formatCoordinate(y)}`).join(" ")}" fill="none" ${attributes}/>`;
}

/** Maps values to pixels. */
export type AxisScale = (value: number) => number;

/** Returns a linear scale from a range of values to a range of pixels. */
export function linearAxis(
  [low, high]: readonly [number, number],
  [pixelStart, pixelEnd]: readonly [number, number],
): AxisScale {
  return (value) => pixelStart + ((value - low) / (high - low)) * (pixelEnd - pixelStart);
}

/** Returns a logarithmic scale from a range of values to a range of pixels. */
export function logAxis([low, high]: readonly [number, number], pixelRange: readonly [number, number]): AxisScale {
  const axis = linearAxis([Math.log10(low), Math.log10(high)], pixelRange);
  return (value) => axis(Math.log10(value));
}

/** Returns round values that divide a range into about `numIntervals` parts. */
export function axisTicks([low, high]: readonly [number, number], numIntervals = 5): readonly number[] {
  const roughStep = (high - low) / numIntervals;
  const decade = 10 ** Math.floor(Math.log10(roughStep));
  const step = [1, 2, 5, 10].map((factor) => factor * decade).find((candidate) => candidate >= roughStep)!;
  const firstTickIndex = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - firstTickIndex + 1 }, (_, i) =>
    Number(((firstTickIndex + i) * step).toPrecision(6)),
  );
}

/** Returns small gray text. */
export function smallText(position: { x: number; y: number }, content: string, attributes = ""): string {
  return text(position.x, position.y, content, `font-size="11" fill="${TEXT_GRAY}" ${attributes}`);
}

/** Returns text in the dark text color. */
export function svgText(position: { x: number; y: number }, content: string, attributes = ""): string {
  return text(position.x, position.y, content, `font-size="12" fill="${TEXT_COLOR}" ${attributes}`);
}

/** Returns the i-th color of a cycle of five. */
export function paletteColor(i: number): string {
  return SERIES_COLORS[i % SERIES_COLORS.length]!;
}
