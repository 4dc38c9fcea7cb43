import { checkArgument, expectValue, option } from "@mosaic/core";

/** Colors of everything that is not data. */
export const theme = {
  text: "#1c2430",
  faint: "#5f6875",
  track: "#eef1f5",
  rule: "#d9dee5",
  paper: "#ffffff",
} as const;

/** Width of every picture, and its margins. */
export const page = { width: 1120, left: 200, right: 36, edge: 32 } as const;

export interface Document {
  readonly title: string;
  /** Text that a screen reader reads after the title. */
  readonly description: string;
  readonly height: number;
  readonly body: readonly string[];
  readonly definitions?: string;
}

const textOption = option.custom("text", (value): value is string => typeof value === "string");
const textsOption = option.array(textOption);

function checkTexts(where: string, ...values: readonly unknown[]): void {
  for (const value of values) if (typeof value !== "string") checkArgument(where, value, textOption);
}

function checkNumbers(where: string, ...values: readonly unknown[]): void {
  for (const value of values) if (typeof value !== "number") expectValue(where, false, "a number", value);
}

const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";

/** Creates an SVG document. */
export function document(parts: Document): string {
  const { title, description, height, body, definitions = "" } = parts ?? {};
  checkNumbers("document", height);
  checkTexts("document", title, description, definitions);
  checkArgument("document: body", body, textsOption);
  const { width } = page;
  const pixelHeight = Math.ceil(height);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${pixelHeight}" width="${width}" height="${pixelHeight}" role="img" aria-labelledby="title description" font-family="${FONT}" fill="${theme.text}">
<title id="title">${escape(title)}</title>
<desc id="description">${escape(description)}</desc>
${definitions}
<rect width="${width}" height="${pixelHeight}" fill="${theme.paper}"/>
${body.filter((part) => part !== "").join("\n")}
</svg>
`;
}

/** Draws title and subtitle at the top of the page. */
export function heading(title: string, subtitle: string): string {
  checkTexts("heading", title, subtitle);
  const titleText = text(page.edge, 44, truncate(title, 22, contentWidth), `font-size="22" font-weight="650"`);
  if (subtitle === "") return titleText;
  return `${titleText}\n${text(page.edge, 70, truncate(subtitle, 14, contentWidth), `font-size="14" fill="${theme.faint}"`)}`;
}

/** Width between the margins. */
const contentWidth = page.width - 2 * page.edge;

/** Draws facts at the foot of the page, one per line. */
export function footnotes(lines: readonly string[], top: number): string {
  checkArgument("footnotes", lines, textsOption);
  return lines.map((line, i) => text(page.edge, top + i * 20, line, `font-size="13" fill="${theme.faint}"`)).join("\n");
}

/** A rectangle in pixels: x to the right, y downward. */
export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

/**
 * Draws a rectangle.
 *
 * @example
 * ```ts
 * import { rect } from "@mosaic/planner/svg";
 * rect({ x: 0, y: 1 / 3, width: 10, height: 5 }, 'rx="2"'); // => '<rect x="0" y="0.33" width="10" height="5" rx="2"/>'
 * ```
 */
export function rect(box: Box, attributes: string): string {
  const { x, y, width, height } = box ?? {};
  checkTexts("rect", attributes);
  return `<rect x="${formatCoordinate(x)}" y="${formatCoordinate(y)}" width="${formatCoordinate(width)}" height="${formatCoordinate(height)}" ${attributes}/>`;
}

/** Draws text on a baseline at height y. `text-anchor` determines whether the text begins, ends or is centered at x. */
export function text(x: number, y: number, content: string, attributes: string): string {
  checkTexts("text", content, attributes);
  return `<text x="${formatCoordinate(x)}" y="${formatCoordinate(y)}" ${attributes}>${escape(content)}</text>`;
}

/** Adds a tooltip to `content`. */
export function tooltip(title: string, content: string): string {
  checkTexts("tooltip", title, content);
  return `<g><title>${escape(title)}</title>${content}</g>`;
}

/** Formats a coordinate with two decimals. */
export function formatCoordinate(value: number): string {
  checkNumbers("formatCoordinate", value);
  return String(Math.round(value * 100) / 100);
}

/** Escapes text and attribute values. Characters that XML cannot represent are replaced. */
export function escape(value: string): string {
  checkTexts("escape", value);
  return value
    .replaceAll(/\s/g, " ")
    .replaceAll(/[\p{Cc}\p{Cs}\ufffe\uffff]/gu, "\ufffd")
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll('"', "&quot;");
}

/** Returns the approximate width of a line of text. Fonts differ. */
export function textWidth(line: string, size: number): number {
  checkTexts("textWidth", line);
  checkNumbers("textWidth", size);
  return line.length * size * 0.6;
}

/**
 * Truncates text to the available width. The full text is in the document's title or description, or in a tooltip.
 * Letters of most fonts are half as wide as high, so text that just fits is not cut.
 */
export function truncate(line: string, size: number, maxWidth: number): string {
  checkTexts("truncate", line);
  checkNumbers("truncate", size, maxWidth);
  const maxCharacters = Math.floor(maxWidth / (size * 0.53));
  const characters = [...line];
  if (characters.length <= maxCharacters) return line;
  return `${characters
    .slice(0, Math.max(0, maxCharacters - 1))
    .join("")
    .trimEnd()}…`;
}

/** Whether a value is a string, possibly an empty one. For options of pictures. */
export function isText(value: unknown): value is string {
  return typeof value === "string";
}
