import { formatBytes, formatSeconds } from "@mosaic/planner";
import { formatCoordinate, text, tooltip } from "@mosaic/planner/svg";
import { drawChartSvg, type ColorPair } from "../src/chart-page.ts";

/** A row of the table `ranks`, in its JSON form. */
interface RankRow {
  readonly strategy: string;
  readonly ranks: number;
  /** Seconds on two networks. */
  readonly fast: number;
  readonly slow: number;
  /** Gigabytes. */
  readonly betweenNodes: number;
  readonly peak: number;
}

/** One of four diagrams: a quantity by number of ranks, with logarithmic axes. */
interface Panel {
  readonly heading: string;
  readonly value: (row: RankRow) => number;
  readonly format: (value: number) => string;
}

const panels: readonly Panel[] = [
  { heading: "Time: nodes of 8 H100s, 47 GB/s per GPU", value: ({ fast }) => fast, format: formatSeconds },
  { heading: "Time: nodes of 8 GPUs, four ports of 9.4 GB/s", value: ({ slow }) => slow, format: formatSeconds },
  {
    heading: "Bytes sent to other nodes, mean over ranks",
    value: ({ betweenNodes }) => 1e9 * betweenNodes,
    format: formatBytes,
  },
  { heading: "Peak memory, maximum over ranks", value: ({ peak }) => 1e9 * peak, format: formatBytes },
];

/** Colors that color-blind readers can also distinguish. Marks differ as well, for places where lines cross. */
const colors: readonly ColorPair[] = [
  ["#0072b2", "#4aa8e0"],
  ["#56b4e9", "#a5daf7"],
  ["#d55e00", "#ff8a4c"],
  ["#b37400", "#f0b73c"],
  ["#8a93a0", "#8a93a0"],
  ["#009e73", "#2fc79b"],
  ["#aa4499", "#e08ad2"],
];

const [WIDTH, TOP_MARGIN, EDGE_MARGIN] = [1120, 132, 32];
/** Size of a panel with its heading and labels, and the left margin of its diagram. */
const [PANEL_WIDTH, PANEL_HEIGHT, LEFT_MARGIN] = [528, 330, 62];
const [PLOT_WIDTH, PLOT_HEIGHT] = [PANEL_WIDTH - LEFT_MARGIN - 20, PANEL_HEIGHT - 74];

/** Draws the rows of the table `ranks`, given as JSON lines: four diagrams with a line for each strategy. */
export function rankChart(jsonLines: string): string {
  const rows = jsonLines
    .split("\n")
    .filter((line) => line.startsWith("{"))
    .map((line) => JSON.parse(line) as RankRow);
  const strategies = [...new Set(rows.map(({ strategy }) => strategy))];
  const title = "Time, bytes sent and peak memory of context parallelism on 16 to 1 024 ranks";
  const subtitle =
    "Predictions for one attention call, forward and backward: 1 048 576 tokens, no mask, 32 heads, 8 KV heads of size 128, bfloat16.";
  const panelSvgs = panels.map((panel, i) => {
    const panelPosition = `translate(${EDGE_MARGIN + (i % 2) * PANEL_WIDTH} ${TOP_MARGIN + Math.floor(i / 2) * PANEL_HEIGHT})`;
    return `<g transform="${panelPosition}">\n${drawPanel(panel, rows, strategies)}\n</g>`;
  });
  return drawChartSvg({
    title,
    width: WIDTH,
    height: TOP_MARGIN + 2 * PANEL_HEIGHT,
    colors: Object.fromEntries(strategies.map((_, i) => [`s${i}`, colors[i]!])),
    body: [
      text(EDGE_MARGIN, 40, title, 'font-size="20" font-weight="650"'),
      text(EDGE_MARGIN, 62, subtitle, 'font-size="13" class="faint" fill="currentColor"'),
      ...strategies.map((strategy, i) => drawLegendEntry(strategy, i)),
      ...panelSvgs,
    ],
  });
}

/** Draws the entry of a strategy in the legend: its color, mark and name. */
function drawLegendEntry(strategy: string, i: number): string {
  const [x, y] = [EDGE_MARGIN + i * 150, 92];
  return `<g class="s${i}" stroke="currentColor" fill="currentColor"><path d="M${x} ${y}h24" stroke-width="2"/>${drawMark(i, x + 12, y)}</g>${text(x + 30, y + 4, strategy, 'font-size="12"')}`;
}

/** Draws a circle, a square or a diamond. */
function drawMark(i: number, x: number, y: number): string {
  const coordinates = `M${formatCoordinate(x)} ${formatCoordinate(y)}`;
  const shapes = [
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
    "m-3 -3h6v6h-6z",
    "m0 -4.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z",
  ];
  return `<path d="${coordinates}${shapes[i % shapes.length]!}" stroke="none"/>`;
}

function drawPanel({ heading, value, format }: Panel, rows: readonly RankRow[], strategies: readonly string[]): string {
  const visibleRows = rows.filter((row) => value(row) > 0);
  const x = logScale(
    visibleRows.map(({ ranks }) => ranks),
    [LEFT_MARGIN, LEFT_MARGIN + PLOT_WIDTH],
  );
  const y = logScale(visibleRows.map(value), [26 + PLOT_HEIGHT, 26]);
  const faintAttributes = 'font-size="11" class="faint" fill="currentColor"';
  const gridLines = y.ticks.map((tick) => {
    const tickY = y.toPixel(tick);
    return (
      `<path d="M${LEFT_MARGIN} ${formatCoordinate(tickY)}h${PLOT_WIDTH}" class="rule" stroke="currentColor"/>` +
      text(LEFT_MARGIN - 8, tickY + 4, format(tick), `text-anchor="end" ${faintAttributes}`)
    );
  });
  const rankCounts = [...new Set(visibleRows.map(({ ranks }) => ranks))];
  const rankLabels = rankCounts.map((ranks) =>
    text(x.toPixel(ranks), PLOT_HEIGHT + 46, `${ranks}`, `text-anchor="middle" ${faintAttributes}`),
  );
  const lines = strategies.map((strategy, i) => {
    const points = visibleRows.filter((row) => row.strategy === strategy);
    const path = points.map(
      (row) => `${formatCoordinate(x.toPixel(row.ranks))} ${formatCoordinate(y.toPixel(value(row)))}`,
    );
    const marks = points.map((row) =>
      tooltip(
        `${strategy}, ${row.ranks} ranks: ${format(value(row))}`,
        drawMark(i, x.toPixel(row.ranks), y.toPixel(value(row))),
      ),
    );
    const line = `<path d="M${path.join("L")}" fill="none" stroke="currentColor" stroke-width="2"/>`;
    return points.length === 0 ? "" : `<g class="s${i}" fill="currentColor">${line}${marks.join("")}</g>`;
  });
  const unit = text(LEFT_MARGIN + PLOT_WIDTH, PLOT_HEIGHT + 62, "ranks", `text-anchor="end" ${faintAttributes}`);
  return [text(0, 12, heading, 'font-size="14" font-weight="600"'), ...gridLines, ...rankLabels, unit, ...lines].join(
    "\n",
  );
}

interface LogScale {
  toPixel(value: number): number;
  /** 1, 2 and 5 times the powers of ten within the values' range. */
  readonly ticks: readonly number[];
}

function logScale(values: readonly number[], [pixelStart, pixelEnd]: readonly [number, number]): LogScale {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(Math.log10) as [number, number];
  const powers = Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, i) => Math.floor(low) + i);
  const ticks = powers.flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
  return {
    toPixel: (value) => pixelStart + ((Math.log10(value) - low) / (high - low)) * (pixelEnd - pixelStart),
    ticks: ticks.filter((tick) => tick >= 10 ** low * 0.999 && tick <= 10 ** high * 1.001),
  };
}
