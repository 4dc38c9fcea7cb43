import { rect } from "@mosaic/planner/svg";
import type { Comparison, MethodResult, PlantedResult, PlantedRun } from "../results.ts";
import {
  type AxisScale,
  polyline,
  svgText,
  svgLine,
  linearAxis,
  logAxis,
  smallText,
  paletteColor,
  svg,
  axisTicks,
} from "@mosaic/program";

const [WIDTH, HEIGHT] = [880, 520];
const plotArea = { left: 150, right: 740, top: 84, bottom: 450 } as const;
/** x coordinate of methods that send no bytes. */
const ZERO_BYTES_X = 92;

/** Draws the loss of each method against the bytes that it has sent. */
export function drawLossAgainstBytes({ methods }: Comparison): string {
  const points = methods.flatMap(({ curve: curvePoints }) => curvePoints);
  const positiveBytes = points.map(({ bytes }) => bytes).filter((bytes) => bytes > 0);
  const losses = points.map(({ held }) => held!.loss);
  const bytesRange = [Math.min(...positiveBytes) / 1.5, Math.max(...positiveBytes) * 1.5] as const;
  const lossRange = [Math.min(...losses) - 0.005, Math.max(...losses) + 0.005] as const;
  const x = logAxis(bytesRange, [plotArea.left, plotArea.right]);
  const y = linearAxis(lossRange, [plotArea.bottom, plotArea.top]);
  const byteTicks = Array.from({ length: 39 }, (_, i) => [1, 2, 5][i % 3]! * 10 ** Math.floor(i / 3)).filter(
    (tick) => tick >= bytesRange[0] && tick <= bytesRange[1],
  );
  const { settings } = methods[0]!;
  return svg(
    {
      width: WIDTH,
      height: HEIGHT,
      title: "Loss against bytes moved, at equal compute",
      subtitle: `${settings.chunks} chunks of ${settings.chunkLength} bases over ${settings.ranks} ranks, seed ${settings.seed}; all methods with the multiply-adds of ring`,
    },
    [
      rect(
        { x: ZERO_BYTES_X - 22, y: plotArea.top, width: 44, height: plotArea.bottom - plotArea.top },
        'fill="#f3f5f8"',
      ),
      smallText({ x: ZERO_BYTES_X, y: plotArea.bottom + 18 }, "nothing", 'text-anchor="middle"'),
      ...axisTicks(lossRange).flatMap((loss) => [
        svgLine([plotArea.left, y(loss), plotArea.right, y(loss)], 'stroke="#e4e8ee"'),
        smallText({ x: ZERO_BYTES_X - 30, y: y(loss) + 4 }, loss.toFixed(2), 'text-anchor="end"'),
      ]),
      ...byteTicks.flatMap((bytes) => [
        svgLine([x(bytes), plotArea.top, x(bytes), plotArea.bottom], 'stroke="#e4e8ee"'),
        smallText({ x: x(bytes), y: plotArea.bottom + 18 }, formatTick(bytes), 'text-anchor="middle"'),
      ]),
      smallText(
        { x: (plotArea.left + plotArea.right) / 2, y: plotArea.bottom + 40 },
        "cumulative bytes sent by attention, all ranks, forward and backward",
        'text-anchor="middle"',
      ),
      smallText({ x: 32, y: 76 }, "cross-entropy of masked held-out bases (nats)"),
      ...methods.flatMap((method, i) => drawMethod(method, i, { x, y })),
    ],
  );
}

function drawMethod(
  { name, curve: curvePoints }: MethodResult,
  i: number,
  { x, y }: { x: (bytes: number) => number; y: (loss: number) => number },
): readonly string[] {
  const bytesX = (bytes: number): number => (bytes > 0 ? x(bytes) : ZERO_BYTES_X);
  const points = curvePoints.map(({ bytes, held }) => [bytesX(bytes), y(held!.loss)] as const);
  const lastPoint = points.at(-1)!;
  const { step, bytes, held } = curvePoints.at(-1)!;
  const tooltip = `${name}: ${held!.loss.toFixed(3)} after ${step} steps`;
  const legendY = plotArea.top + 12 + i * 34;
  return [
    polyline(points, `stroke="${paletteColor(i)}" stroke-width="1.6" stroke-linejoin="round" opacity="0.85"`),
    `<circle cx="${lastPoint[0].toFixed(1)}" cy="${lastPoint[1].toFixed(1)}" r="4.5" fill="${paletteColor(i)}"><title>${tooltip}</title></circle>`,
    rect({ x: plotArea.right + 14, y: legendY - 9, width: 10, height: 10 }, `fill="${paletteColor(i)}"`),
    svgText({ x: plotArea.right + 30, y: legendY }, name),
    smallText({ x: plotArea.right + 30, y: legendY + 14 }, `${held!.loss.toFixed(4)}, ${formatMegabytes(bytes)}`),
  ];
}

/** Formats a tick of the axis of bytes. Ticks have one significant digit. */
const formatTick = (bytes: number): string =>
  bytes >= 1e9 ? `${bytes / 1e9} GB` : bytes >= 1e6 ? `${bytes / 1e6} MB` : `${bytes / 1e3} kB`;
const formatMegabytes = (bytes: number): string =>
  bytes === 0 ? "0 MB" : `${Number((bytes / 1e6).toPrecision(3))} MB`;

const [RECALL_WIDTH, RECALL_HEIGHT] = [880, 470];
const [RECALL_PLOT_TOP, RECALL_PLOT_BOTTOM] = [110, 390];
/** Target recall of routing on planted repeats. */
const TARGET_RECALL = 0.95;

/**
 * Draws on the left, for λ, recall and captured mass of exact attention, and on the right recall of planted repeats.
 */
export function drawRecall({ methods }: Comparison, { runs }: PlantedResult): string {
  const y = linearAxis([0, 1], [RECALL_PLOT_BOTTOM, RECALL_PLOT_TOP]);
  const { chunks, chunkLength } = runs[0]!.settings;
  return svg(
    {
      width: RECALL_WIDTH,
      height: RECALL_HEIGHT,
      title: "Recall of the router: share of the best chunks that it selects",
      subtitle: `held-out sequences; planted: ${chunks} chunks of ${chunkLength} bases, ${runs.length} seeds, ${runs[0]!.pairs} pairs each`,
    },
    [...drawMethodBars(methods, y), ...drawPlantedBars(runs, y)],
  );
}

const seedColor = (i: number): string => paletteColor([0, 1, 4][i % 3]!);

function drawGrid(y: AxisScale, [left, right]: readonly [number, number], title: string): readonly string[] {
  return [
    svgText({ x: left, y: RECALL_PLOT_TOP - 16 }, title, 'font-weight="700"'),
    ...axisTicks([0, 1]).flatMap((tick) => [
      svgLine([left, y(tick), right, y(tick)], 'stroke="#e4e8ee"'),
      smallText({ x: left - 8, y: y(tick) + 4 }, tick.toFixed(1), 'text-anchor="end"'),
    ]),
  ];
}

function drawMethodBars(methods: readonly MethodResult[], y: AxisScale): readonly string[] {
  const [left, right] = [64, 404];
  const routedMethods = methods.filter(({ recall }) => recall);
  const groupWidth = (right - left) / routedMethods.length;
  return [
    ...drawGrid(y, [left, right], "λ: recall, and attention mass on selected chunks"),
    ...routedMethods.flatMap(({ name, recall }, i) => {
      const x = left + i * groupWidth + groupWidth / 2;
      const { recall: recallShare, captured, chance } = recall!;
      const drawBar = (barX: number, value: number, fill: string): string =>
        rect({ x: barX, y: y(value), width: 30, height: RECALL_PLOT_BOTTOM - y(value) }, `fill="${fill}"`);
      return [
        drawBar(x - 34, recallShare, paletteColor(0)),
        smallText({ x: x - 19, y: y(recallShare) - 5 }, recallShare.toFixed(2), 'text-anchor="middle"'),
        drawBar(x + 4, captured, paletteColor(2)),
        smallText({ x: x + 19, y: y(captured) - 5 }, captured.toFixed(2), 'text-anchor="middle"'),
        svgLine([x - 40, y(chance), x + 40, y(chance)], 'stroke="#b5446e" stroke-width="1.5" stroke-dasharray="4 3"'),
        svgText({ x, y: RECALL_PLOT_BOTTOM + 18 }, name, 'text-anchor="middle"'),
      ];
    }),
    ...drawLegend(left, [
      [paletteColor(0), "share of the best chunks that were selected"],
      [paletteColor(2), "attention mass on selected chunks, relative to the best chunks"],
      ["#b5446e", "dashed: chance level"],
    ]),
  ];
}

function drawPlantedBars(runs: readonly PlantedRun[], y: AxisScale): readonly string[] {
  const [left, right] = [500, 840];
  const steps = Math.max(...runs.flatMap(({ curve: curvePoints }) => curvePoints.map(({ step }) => step)));
  const x = linearAxis([0, steps], [left, right]);
  const { chance } = runs[0]!;
  return [
    ...drawGrid(y, [left, right], "planted repeats: recall of the source chunk"),
    ...axisTicks([0, steps]).map((step) =>
      smallText({ x: x(step), y: RECALL_PLOT_BOTTOM + 18 }, String(step), 'text-anchor="middle"'),
    ),
    smallText({ x: right, y: RECALL_PLOT_BOTTOM + 34 }, "steps", 'text-anchor="end"'),
    svgLine([left, y(TARGET_RECALL), right, y(TARGET_RECALL)], 'stroke="#2a9d6f" stroke-width="1.2"'),
    smallText({ x: left + 4, y: y(TARGET_RECALL) + 14 }, `goal ${TARGET_RECALL}`),
    svgLine([left, y(chance), right, y(chance)], 'stroke="#b5446e" stroke-width="1.5" stroke-dasharray="4 3"'),
    ...runs.map(({ curve: curvePoints }, i) => {
      const points = curvePoints.map(({ step, held }) => [x(step), y(held!.recall!)] as const);
      return polyline(points, `stroke="${seedColor(i)}" stroke-width="1.8"`);
    }),
    ...drawLegend(
      left,
      runs.map(({ settings, recall }, i) => [
        seedColor(i),
        `seed ${settings.seed}: ${recall.toFixed(3)} after training`,
      ]),
    ),
  ];
}

function drawLegend(left: number, entries: readonly (readonly [fill: string, words: string])[]): readonly string[] {
  return entries.flatMap(([fill, label], i) => [
    rect({ x: left, y: RECALL_PLOT_BOTTOM + 30 + i * 16, width: 10, height: 10 }, `fill="${fill}"`),
    smallText({ x: left + 16, y: RECALL_PLOT_BOTTOM + 39 + i * 16 }, label),
  ]);
}
