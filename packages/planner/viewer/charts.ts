import uPlot from "uplot";
import { bytesText } from "../src/draw/quantity.ts";
import type { LoadData } from "../src/view/data.ts";
import { readTheme } from "./colors.ts";
import { createElement, createSection, createTable } from "./elements.ts";
import { memoryOverTime, peakBytes } from "./memory.ts";
import type { Run } from "./model.ts";
import { createAxis, createPlot, createTimeAxis } from "./plot.ts";

/** Number of points of a memory line: as many as a wide screen has pixels. */
const MAX_LINE_POINTS = 1200;

const RUN_COLORS = ["#0072b2", "#d55e00"];

/** Creates the section on allocated memory: the maximum over ranks, and the mean. */
export function createMemorySection(runs: readonly Run[]): HTMLElement | undefined {
  const runsWithMemory = runs.filter(({ ranks }) => ranks.some(({ memory }) => memory && memory.time.length > 0));
  if (runsWithMemory.length === 0) return undefined;
  const seconds = Math.max(...runsWithMemory.map((run) => run.seconds));
  const memoryLines = runsWithMemory.flatMap((run, i) => {
    const { time, most: maxBytes, mean } = memoryOverTime(run.ranks, seconds, MAX_LINE_POINTS);
    const prefix = run.name === "" ? "" : `${run.name}, `;
    const stroke = RUN_COLORS[i % 2]!;
    return [
      { time, values: maxBytes, series: { label: `${prefix}maximum over ranks`, stroke, width: 2 } },
      { time, values: mean, series: { label: `${prefix}mean`, stroke, width: 1.5, dash: [5, 4] } },
    ];
  });
  const peaks = runsWithMemory.map(
    (run) => `${run.name === "" ? "" : `${run.name}: `}${bytesText(Math.max(...run.ranks.map(peakBytes)))}`,
  );
  const frame = createElement("div", {
    class: "canvas",
    role: "img",
    "aria-label": `Memory over time; peak ${peaks.join("; ")}`,
  });
  runWhenShown(frame, () => {
    const bytesAxis = createAxis({ size: 72, values: (_, values) => values.map(bytesText), incrs: tickIncrements });
    createPlot(
      {
        height: 240,
        padding: [8, 12, 0, 0],
        scales: { x: { time: false }, y: { range: (_, __, max) => [0, max * 1.06 || 1] } },
        axes: [createTimeAxis(), bytesAxis],
        series: [
          { value: (_, time) => `${time}` },
          ...memoryLines.map(({ series }) => ({
            ...series,
            points: { show: false },
            value: (_: uPlot, value: number | null) => bytesText(value ?? 0),
          })),
        ],
        cursor: { drag: { x: false, y: false } },
        legend: { show: true, live: false },
      },
      [memoryLines[0]!.time, ...memoryLines.map(({ values }) => values)],
      frame,
    );
  });
  return createSection(
    "memory",
    "Memory over time",
    createElement("p", {}, `Bytes allocated per rank; peak ${peaks.join("; ")}.`),
    frame,
  );
}

/** Round numbers of bytes: 1, 2 and 5 times powers of ten. */
const tickIncrements: number[] = Array.from({ length: 15 }, (_, power) =>
  [1, 2, 5].map((digit) => digit * 10 ** power),
).flat();

/** Creates the section on the visible pairs of each rank relative to the mean. */
export function createLoadSection({ mask, placement, ranks, pairs }: LoadData): HTMLElement {
  const meanPairs = pairs.reduce((sum, each) => sum + each, 0) / Math.max(1, pairs.length) || 1;
  const relativeLoads = pairs.map((each) => each / meanPairs);
  const maxRelativeLoad = Math.max(...relativeLoads);
  const description = `${mask}, ${placement}: the most loaded rank has ${maxRelativeLoad.toFixed(2)} × the mean load.`;
  const frame = createElement("div", { class: "canvas", role: "img", "aria-label": `Load by rank. ${description}` });
  runWhenShown(frame, () => {
    const bars = uPlot.paths.bars!({ size: [0.8, 64], gap: ranks.length > 200 ? 0 : 1 });
    createPlot(
      {
        height: 220,
        padding: [8, 12, 0, 0],
        scales: {
          x: { time: false, range: [-0.6, ranks.length - 0.4] },
          y: { range: [0, Math.max(1.2, maxRelativeLoad * 1.1)] },
        },
        axes: [
          createAxis({
            incrs: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
            values: (_, at) => at.map((i) => (Number.isInteger(i) ? `${ranks[i] ?? ""}` : "")),
            label: "rank",
            labelSize: 20,
          }),
          createAxis({ size: 56, values: (_, values) => values.map((value) => `${Number(value.toPrecision(3))} ×`) }),
        ],
        series: [{}, { paths: bars, fill: "#0072b2", stroke: "#0072b2", width: 0, points: { show: false } }],
        cursor: { show: false },
        hooks: { draw: [drawMean] },
      },
      [ranks.map((_, i) => i), relativeLoads],
      frame,
    );
  });
  const table = createTable(
    "load by rank",
    [
      { name: "rank", isNumber: true, text: (i: number) => `${ranks[i]}` },
      { name: "visible pairs", isNumber: true, text: (i: number) => pairs[i]!.toLocaleString("en-US") },
      { name: "load", isNumber: true, text: (i: number) => `${relativeLoads[i]!.toFixed(3)} ×` },
    ],
    () => [...ranks.keys()],
  );
  return createSection(
    "load",
    "Load by rank",
    createElement("p", {}, `Visible (query, key) pairs per rank, relative to the mean. ${description}`),
    frame,
    table,
  );
}

function drawMean(plot: uPlot): void {
  const { ctx, bbox } = plot;
  const y = plot.valToPos(1, "y", true);
  ctx.save();
  ctx.strokeStyle = readTheme().ink;
  ctx.setLineDash([6, 4]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

/** Calls back once an element is in the page and has a width. */
function runWhenShown(frame: HTMLElement, callback: () => void): void {
  requestAnimationFrame(callback);
  frame.classList.add("pending");
}
