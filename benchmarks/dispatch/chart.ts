import { rect, text, tooltip } from "@mosaic/planner/svg";
import { type ComparisonRow, groupRows, isFlex } from "./comparison.ts";

const WIDTH = 1120;
const LABEL_WIDTH = 230;
const BAR_HEIGHT = 13;
const colors = { forward: "#0072b2", backward: "#56b4e9", ours: "#d55e00", oursBackward: "#e69f00", faint: "#5f6875" };

/** Bars of forward and backward, one group for each mask, number of ranks and kind of links; each group has its own scale. */
export function comparisonChart(rows: readonly ComparisonRow[], title: string): string {
  const groups = groupRows(rows);
  const parts: string[] = [
    text(32, 36, title, 'font-size="20" font-weight="650"'),
    text(
      32,
      58,
      "Predicted milliseconds of one attention, forward (dark) and backward (light); each group to its own scale.",
      `font-size="13" fill="${colors.faint}"`,
    ),
  ];
  let y = 84;
  for (const group of groups) {
    const { mask, ranks, links, documents } = group[0]!;
    const heading = `${mask}${documents > 1 ? `, ${documents} documents` : ""}: ${ranks} ranks, ${links} links`;
    parts.push(text(32, y + 4, heading, 'font-size="14" font-weight="600"'));
    y += 14;
    const most = Math.max(...group.map(({ forward, backward }) => forward + backward));
    const scale = (WIDTH - LABEL_WIDTH - 110) / most;
    for (const row of group) {
      parts.push(bars(row, y, scale));
      y += BAR_HEIGHT + 4;
    }
    y += 20;
  }
  const size = `width="${WIDTH}" height="${y}" viewBox="0 0 ${WIDTH} ${y}"`;
  const style = `font-family="system-ui, sans-serif" fill="#1c2430" role="img" aria-label="${title}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${style}>\n<rect width="${WIDTH}" height="${y}" fill="#ffffff"/>\n${parts.join("\n")}\n</svg>\n`;
}

function bars(row: ComparisonRow, y: number, scale: number): string {
  const { family, way, forward, backward } = row;
  const [first, second] = isFlex(row) ? [colors.ours, colors.oursBackward] : [colors.forward, colors.backward];
  const widths = [forward * scale, backward * scale] as const;
  const times = `${(forward * 1e3).toFixed(1)} + ${(backward * 1e3).toFixed(1)}`;
  return tooltip(
    `${family} (${way}): ${times} ms`,
    [
      text(LABEL_WIDTH - 8, y + BAR_HEIGHT - 2, family, 'font-size="12" text-anchor="end"'),
      rect({ x: LABEL_WIDTH, y, width: widths[0], height: BAR_HEIGHT }, `fill="${first}"`),
      rect({ x: LABEL_WIDTH + widths[0], y, width: widths[1], height: BAR_HEIGHT }, `fill="${second}"`),
      text(LABEL_WIDTH + widths[0] + widths[1] + 6, y + BAR_HEIGHT - 2, times, `font-size="11" fill="${colors.faint}"`),
    ].join(""),
  );
}
