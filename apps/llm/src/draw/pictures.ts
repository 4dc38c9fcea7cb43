import { rect } from "@mosaic/planner/svg";
import {
  axisTicks,
  linearAxis,
  logAxis,
  paletteColor,
  polyline,
  smallText,
  svg,
  svgLine,
  svgText,
} from "@mosaic/program";
import type { NeedleResult } from "../needles/measure-needles.ts";
import type { PerplexityResult } from "../perplexity.ts";
import type { TrainSettings } from "../settings.ts";
import type { LossPoint } from "../train-model.ts";

const [WIDTH, HEIGHT] = [760, 460];
const plotArea = { left: 72, right: 720, top: 96, bottom: 400 } as const;

type Range = readonly [number, number];

/** Returns the range of the values with a margin on both sides. */
function padRange(values: readonly number[]): Range {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = Math.max(0.05, 0.06 * (high - low));
  return [low - margin, high + margin];
}

/** Draws the lines and numbers of the vertical axis. */
function drawLossAxis(range: Range, y: (loss: number) => number): readonly string[] {
  return axisTicks(range).flatMap((loss) => [
    svgLine([plotArea.left, y(loss), plotArea.right, y(loss)], 'stroke="#e4e8ee"'),
    smallText({ x: plotArea.left - 8, y: y(loss) + 4 }, String(loss), 'text-anchor="end"'),
  ]);
}

const drawXAxisTitle = (title: string): string =>
  smallText({ x: (plotArea.left + plotArea.right) / 2, y: plotArea.bottom + 40 }, title, 'text-anchor="middle"');
const yAxisTitle: string = smallText({ x: plotArea.left - 40, y: plotArea.top - 14 }, "cross-entropy per token (nats)");

/** Draws the loss of every step, and the held-out loss of the steps at which it was measured. */
export function drawLossCurve(points: readonly LossPoint[], settings: TrainSettings): string {
  const heldOutPoints = points.flatMap(({ step, heldOut }) => (heldOut === undefined ? [] : [{ step, loss: heldOut }]));
  const losses = [...points, ...heldOutPoints].map(({ loss }) => loss);
  const stepRange = [0, Math.max(1, points.at(-1)?.step ?? 1)] as const;
  const [range, x] = [padRange(losses), linearAxis(stepRange, [plotArea.left, plotArea.right])];
  const y = linearAxis(range, [plotArea.bottom, plotArea.top]);
  const { layers, hidden, length, ranks, backend, seed } = settings;
  const subtitle = `${layers} layers, hidden size ${hidden}, sequence length ${length}, ${backend} on ${ranks} ranks, seed ${seed}`;
  return svg({ width: WIDTH, height: HEIGHT, title: "Loss on training and held-out books", subtitle }, [
    ...drawLossAxis(range, y),
    ...axisTicks(stepRange).map((step) =>
      smallText({ x: x(step), y: plotArea.bottom + 18 }, String(step), 'text-anchor="middle"'),
    ),
    drawXAxisTitle("step"),
    yAxisTitle,
    polyline(
      points.map(({ step, loss }) => [x(step), y(loss)] as const),
      `stroke="${paletteColor(0)}" opacity="0.55"`,
    ),
    polyline(
      heldOutPoints.map(({ step, loss }) => [x(step), y(loss)] as const),
      `stroke="${paletteColor(1)}" stroke-width="2"`,
    ),
    ...heldOutPoints.map(({ step, loss }) => circle(x(step), y(loss), 1)),
    ...drawLegend(["training", "held-out books"]),
  ]);
}

function circle(x: number, y: number, seriesIndex: number): string {
  return `<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="3.5" fill="${paletteColor(seriesIndex)}"/>`;
}

function drawLegend(names: readonly string[]): readonly string[] {
  return names.flatMap((name, i) => [
    rect({ x: plotArea.right - 150, y: plotArea.top + 6 + 20 * i, width: 12, height: 4 }, `fill="${paletteColor(i)}"`),
    svgText({ x: plotArea.right - 130, y: plotArea.top + 12 + 20 * i }, name),
  ]);
}

/** Draws loss over context length in two curves: by position in a text, and for the same tokens with less context. */
export function drawPerplexity({ positions, contexts, length, texts }: PerplexityResult): string {
  const midpoints = positions.map(({ from, to, loss, error }) => ({
    numPrecedingTokens: Math.max(4, (from + to) / 2),
    loss,
    error,
  }));
  const x = logAxis([4, length], [plotArea.left, plotArea.right]);
  const range = padRange([...midpoints, ...contexts].map(({ loss }) => loss));
  const y = linearAxis(range, [plotArea.bottom, plotArea.top]);
  const ticks = Array.from({ length: 20 }, (_, i) => 4 * 4 ** i).filter((tick) => tick <= length);
  return svg(
    {
      ...{ width: WIDTH, height: HEIGHT, title: "Cross-entropy on held-out books, by context length" },
      subtitle: `${texts} texts of ${length} tokens of held-out books; bars are standard errors`,
    },
    [
      ...drawLossAxis(range, y),
      ...ticks.map((tick) => smallText({ x: x(tick), y: plotArea.bottom + 18 }, String(tick), 'text-anchor="middle"')),
      drawXAxisTitle("context length in tokens"),
      yAxisTitle,
      ...midpoints.map(({ numPrecedingTokens, loss, error }) =>
        svgLine(
          [x(numPrecedingTokens), y(loss - error), x(numPrecedingTokens), y(loss + error)],
          `stroke="${paletteColor(0)}" opacity="0.5"`,
        ),
      ),
      ...[midpoints, contexts.map(({ context, loss }) => ({ numPrecedingTokens: context, loss }))].flatMap(
        (series, i) => [
          polyline(
            series.map(({ numPrecedingTokens, loss }) => [x(numPrecedingTokens), y(loss)] as const),
            `stroke="${paletteColor(i)}" stroke-width="1.8"`,
          ),
          ...series.map(({ numPrecedingTokens, loss }) => circle(x(numPrecedingTokens), y(loss), i)),
        ],
      ),
      ...drawLegend(["by position", "the same tokens"]),
    ],
  );
}

/** Draws a heat map of accuracy by depth and length. */
export function drawNeedles(result: NeedleResult): string {
  const { cells, trials, seed, facts, values, chance, trainedLength } = result;
  const lengths = [...new Set(cells.map(({ length }) => length))];
  const depths = [...new Set(cells.map(({ depth }) => depth))];
  const [cellWidth, cellHeight] = [
    (plotArea.right - plotArea.left) / lengths.length,
    (plotArea.bottom - plotArea.top) / depths.length,
  ];
  const body = cells.flatMap(({ length, depth, accuracy }) => {
    const [x, y] = [
      plotArea.left + lengths.indexOf(length) * cellWidth,
      plotArea.top + depths.indexOf(depth) * cellHeight,
    ];
    const center = { x: x + cellWidth / 2, y: y + cellHeight / 2 + 4 };
    return [
      rect({ x, y, width: cellWidth - 2, height: cellHeight - 2 }, `fill="hsl(${Math.round(120 * accuracy)} 55% 78%)"`),
      svgText(center, accuracy.toFixed(2), 'text-anchor="middle"'),
    ];
  });
  return svg(
    {
      ...{ width: WIDTH, height: HEIGHT, title: "Share of needles found, by depth and length" },
      subtitle: `share of ${trials} texts with the correct value out of ${values}; ${facts} facts, unseen keys, chance ${chance.toFixed(3)}, seed ${seed}`,
    },
    [
      ...body,
      ...lengths.map((length, i) =>
        smallText(
          { x: plotArea.left + (i + 0.5) * cellWidth, y: plotArea.bottom + 18 },
          length > trainedLength ? `${length} (untrained)` : `${length} tokens`,
          'text-anchor="middle"',
        ),
      ),
      ...depths.map((depth, i) =>
        smallText(
          { x: plotArea.left - 8, y: plotArea.top + (i + 0.5) * cellHeight + 4 },
          `${100 * depth} %`,
          'text-anchor="end"',
        ),
      ),
      smallText({ x: plotArea.left - 40, y: plotArea.top - 14 }, "depth of the fact in the text"),
    ],
  );
}
