import { rect, text, tooltip } from "@mosaic/planner/svg";
import { drawChartSvg, type ColorPair } from "../src/chart-page.ts";
import { type ComparisonRow, groupRows, usesDispatch } from "./comparison.ts";

const WIDTH = 1120;
const LABEL_WIDTH = 230;
const BAR_HEIGHT = 13;
const colors: Readonly<Record<string, ColorPair>> = {
  forward: ["#0072b2", "#2f8fcb"],
  backward: ["#56b4e9", "#a5daf7"],
  ours: ["#d55e00", "#f07a35"],
  "ours-backward": ["#e69f00", "#f7c869"],
};

/**
 * Draws bars of forward and backward times, in one group for each mask, number of ranks and kind of links. Each group
 * has its own scale.
 */
export function comparisonChart(rows: readonly ComparisonRow[], title: string): string {
  const groups = groupRows(rows);
  const body: string[] = [
    text(32, 36, title, 'font-size="20" font-weight="650"'),
    text(
      32,
      58,
      "Predicted time of one attention call in ms, forward (dark) and backward (light); each group has a separate scale.",
      'font-size="13" class="faint" fill="currentColor"',
    ),
  ];
  let y = 84;
  for (const group of groups) {
    const { mask, ranks, links, documents } = group[0]!;
    const heading = `${mask}${documents > 1 ? `, ${documents} documents` : ""}: ${ranks} ranks, ${links} links`;
    body.push(text(32, y + 4, heading, 'font-size="14" font-weight="600"'));
    y += 14;
    const maxSeconds = Math.max(...group.map(({ forward, backward }) => forward + backward));
    const scale = (WIDTH - LABEL_WIDTH - 110) / maxSeconds;
    for (const row of group) {
      body.push(drawBars(row, y, scale));
      y += BAR_HEIGHT + 4;
    }
    y += 20;
  }
  return drawChartSvg({ title, width: WIDTH, height: y, colors, body });
}

function drawBars(row: ComparisonRow, y: number, scale: number): string {
  const { family, way, forward, backward } = row;
  const [forwardClass, backwardClass] = usesDispatch(row) ? ["ours", "ours-backward"] : ["forward", "backward"];
  const widths = [forward * scale, backward * scale] as const;
  const timesText = `${(forward * 1e3).toFixed(1)} + ${(backward * 1e3).toFixed(1)}`;
  return tooltip(
    `${family} (${way}): ${timesText} ms`,
    [
      text(LABEL_WIDTH - 8, y + BAR_HEIGHT - 2, family, 'font-size="12" text-anchor="end"'),
      rect({ x: LABEL_WIDTH, y, width: widths[0], height: BAR_HEIGHT }, `class="${forwardClass}" fill="currentColor"`),
      rect(
        { x: LABEL_WIDTH + widths[0], y, width: widths[1], height: BAR_HEIGHT },
        `class="${backwardClass}" fill="currentColor"`,
      ),
      text(
        LABEL_WIDTH + widths[0] + widths[1] + 6,
        y + BAR_HEIGHT - 2,
        timesText,
        'font-size="11" class="faint" fill="currentColor"',
      ),
    ].join(""),
  );
}
