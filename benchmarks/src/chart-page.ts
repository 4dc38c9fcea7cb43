import { escape, rect } from "@mosaic/planner/svg";

/** A color for light mode, and one for dark mode. */
export type ColorPair = readonly [light: string, dark: string];

const textColor: ColorPair = ["#1c2430", "#e6eaf0"];
const backgroundColor: ColorPair = ["#ffffff", "#14181f"];
const secondaryTextColor: ColorPair = ["#5f6875", "#a3adba"];
const gridLineColor: ColorPair = ["#d9dee5", "#343c47"];

/** Contents of a page. */
export interface ChartPage {
  readonly title: string;
  readonly width: number;
  readonly height: number;
  /**
   * Classes of the body's elements. Each has its own color, which is `currentColor` there. `faint` and `rule` always
   * exist.
   */
  readonly colors: Readonly<Record<string, ColorPair>>;
  readonly body: readonly string[];
}

/** Returns a whole SVG document, in light or dark mode by the reader's preference. */
export function drawChartSvg({ title, width, height, colors, body }: ChartPage): string {
  const classes = Object.entries({
    ink: textColor,
    paper: backgroundColor,
    faint: secondaryTextColor,
    rule: gridLineColor,
    ...colors,
  });
  const formatStyles = (schemeIndex: 0 | 1): string =>
    classes.map(([name, pair]) => `.${name}{color:${pair[schemeIndex]}}`).join("");
  const size = `width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`;
  const rootAttributes = `font-family="system-ui, sans-serif" class="ink" fill="currentColor" role="img" aria-label="${escape(title)}"`;
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${rootAttributes}>`,
    `<style>${formatStyles(0)}@media (prefers-color-scheme:dark){${formatStyles(1)}}</style>`,
    rect({ x: 0, y: 0, width, height }, 'class="paper" fill="currentColor"'),
    ...body,
    "</svg>",
  ].join("\n")}\n`;
}
