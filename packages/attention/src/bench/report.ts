import { formatBytes, formatSeconds } from "@mosaic/planner";
import { escape, rect, text, tooltip } from "@mosaic/planner/svg";
import type { Measurement } from "./measure.ts";
import type { BenchSettings } from "./settings.ts";

/** Describes the measured settings in one line. */
export function describeBench({
  numHeads,
  numKvHeads,
  headDim,
  dtype,
  mask,
  placement,
  backward,
  ranks,
}: BenchSettings): string {
  const kv = numKvHeads === numHeads ? "" : ` (${numKvHeads} KV heads)`;
  return `${ranks} ranks, ${numHeads} heads${kv} of size ${headDim}, ${dtype}, ${mask.name}, ${placement}, ${backward ? "forward and backward" : "forward"}`;
}

const columns = ["tokens", "backend", "median", "from", "to", "ratio", "GFLOP/s", "sent"] as const;

/** Formats a header and one line for each measurement. */
export function formatBenchTable(measurements: readonly Measurement[]): string {
  const cells = measurements.map((measurement) => [
    `${measurement.seqLength}`,
    measurement.ranks === 1 ? `${measurement.backend} (one device)` : measurement.backend,
    formatSeconds(measurement.seconds),
    formatSeconds(measurement.shortest),
    formatSeconds(measurement.longest),
    `${measurement.ratio.toFixed(2)} ×`,
    (measurement.flopsPerSecond / 1e9).toFixed(1),
    formatBytes(measurement.bytesSent),
  ]);
  const widths = columns.map((title, i) => Math.max(title.length, ...cells.map((row) => row[i]!.length)));
  const padCell = (word: string, i: number): string => (i === 1 ? word.padEnd(widths[i]!) : word.padStart(widths[i]!));
  return [columns, ...cells].map((row) => row.map(padCell).join("  ").trimEnd()).join("\n");
}

const CHART_WIDTH = 760;
const LABEL_WIDTH = 190;
const LINE_HEIGHT = 26;
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#e69f00"];

/**
 * Draws a labeled bar for each measurement. Its width is the median relative to the largest of the same sequence
 * length.
 */
export function drawBench(measurements: readonly Measurement[], title: string): string {
  const names = [...new Set(measurements.map(({ backend }) => backend))];
  const maxBarWidth = CHART_WIDTH - LABEL_WIDTH - 190;
  const bars = measurements.map((measurement, i) => {
    const maxSeconds = Math.max(
      ...measurements.filter(({ seqLength }) => seqLength === measurement.seqLength).map(({ seconds }) => seconds),
    );
    const y = 60 + i * LINE_HEIGHT;
    const width = Math.max(1, (measurement.seconds / maxSeconds) * maxBarWidth);
    const valueText = `${formatSeconds(measurement.seconds)}, ${measurement.ratio.toFixed(2)} ×`;
    const bar = rect(
      { x: LABEL_WIDTH, y, width, height: LINE_HEIGHT - 8 },
      `fill="${COLORS[names.indexOf(measurement.backend) % COLORS.length]}"`,
    );
    const rangeText = `${measurement.backend}, ${measurement.seqLength} tokens: ${formatSeconds(measurement.shortest)} to ${formatSeconds(measurement.longest)}`;
    return [
      text(
        LABEL_WIDTH - 10,
        y + 13,
        `${measurement.seqLength} · ${measurement.backend}`,
        `text-anchor="end" font-size="13" fill="#1c2430"`,
      ),
      tooltip(rangeText, bar),
      text(LABEL_WIDTH + width + 8, y + 13, valueText, `font-size="13" fill="#1c2430"`),
    ].join("\n");
  });
  const height = 60 + measurements.length * LINE_HEIGHT + 16;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${CHART_WIDTH} ${height}" role="img" aria-labelledby="title" font-family="system-ui, sans-serif">`,
    `<title id="title">${escape(title)}</title>`,
    rect({ x: 0, y: 0, width: CHART_WIDTH, height }, `fill="#ffffff"`),
    text(16, 32, title, `font-size="14" font-weight="600" fill="#1c2430"`),
    ...bars,
    "</svg>\n",
  ].join("\n");
}
