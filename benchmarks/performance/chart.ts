import { rect, text, tooltip } from "@mosaic/planner/svg";
import { drawChartSvg, type ColorPair } from "../src/chart-page.ts";

/** A bar, for a non-negative number of a case. */
export interface Bar {
  readonly label: string;
  readonly value: number;
}

/** Bars with a common scale, under a heading. */
export interface Group {
  readonly heading: string;
  readonly bars: readonly Bar[];
}

/** Texts and scale of a chart, and the marks that its bars are compared with. */
export interface ChartOptions {
  readonly title: string;
  readonly subtitle: string;
  /** The largest value that is drawn. Longer bars are cut there and labeled with their number. */
  readonly maxValue: number;
  readonly markedValues: readonly number[];
  readonly format: (value: number) => string;
}

const [COLUMN_WIDTH, LABEL_WIDTH, BAR_HEIGHT] = [560, 170, 11];
const colors: Readonly<Record<string, ColorPair>> = {
  met: ["#0072b2", "#4aa8e0"],
  missed: ["#d55e00", "#ff8a4c"],
  mark: ["#009e73", "#2fc79b"],
};

/** Draws groups in two columns. Bars below the first mark have another color. */
export function barChart(groups: readonly Group[], options: ChartOptions): string {
  const { title, subtitle } = options;
  const body = [
    text(32, 36, title, 'font-size="20" font-weight="650"'),
    text(32, 58, subtitle, 'font-size="13" class="faint" fill="currentColor"'),
  ];
  const columnBottoms = [80, 80];
  for (const group of groups) {
    const column = columnBottoms[0]! <= columnBottoms[1]! ? 0 : 1;
    body.push(drawGroup(group, { x: column * COLUMN_WIDTH, y: columnBottoms[column]! }, options));
    columnBottoms[column]! += 40 + group.bars.length * (BAR_HEIGHT + 3);
  }
  const [width, height] = [2 * COLUMN_WIDTH + 20, Math.max(...columnBottoms) + 10];
  return drawChartSvg({ title, width, height, colors, body });
}

interface Position {
  readonly x: number;
  readonly y: number;
}

function drawGroup(
  { heading, bars }: Group,
  { x, y }: Position,
  { maxValue: limit, markedValues: marks, format }: ChartOptions,
): string {
  const scale = (COLUMN_WIDTH - LABEL_WIDTH - 80) / limit;
  const top = y + 14,
    height = bars.length * (BAR_HEIGHT + 3);
  const barSvgs = bars.map(({ label, value }, i) => {
    const barY = top + i * (BAR_HEIGHT + 3);
    const length = Math.min(value, limit) * scale;
    const color = value >= marks[0]! ? "met" : "missed";
    return tooltip(
      `${label}: ${format(value)}`,
      [
        text(x + LABEL_WIDTH - 8, barY + BAR_HEIGHT - 2, label, 'font-size="11" text-anchor="end"'),
        rect(
          { x: x + LABEL_WIDTH, y: barY, width: length, height: BAR_HEIGHT },
          `class="${color}" fill="currentColor"`,
        ),
        text(
          x + LABEL_WIDTH + length + 5,
          barY + BAR_HEIGHT - 2,
          format(value),
          'font-size="10" class="faint" fill="currentColor"',
        ),
      ].join(""),
    );
  });
  const lines = marks.map((mark) => {
    const markX = x + LABEL_WIDTH + mark * scale;
    return `<path d="M${markX.toFixed(1)} ${top - 3}V${top + height}" class="mark" stroke="currentColor" stroke-dasharray="3 2"/>`;
  });
  return [text(x + 32, y + 4, heading, 'font-size="14" font-weight="600"'), ...barSvgs, ...lines].join("\n");
}
