import uPlot from "uplot";
import { secondsText } from "../src/draw/quantity.ts";
import { onThemeChange, readTheme } from "./colors.ts";

const FONT = "12px system-ui, sans-serif";

/** Creates an axis in the page's colors. */
export function createAxis(options: uPlot.Axis): uPlot.Axis {
  return {
    font: FONT,
    labelFont: FONT,
    stroke: () => readTheme().faint,
    grid: { stroke: () => readTheme().rule, width: 1 },
    ticks: { stroke: () => readTheme().rule, width: 1, size: 5 },
    ...options,
  };
}

/** Creates the time axis below a plot. Times have as many digits as are needed to distinguish them. */
export function createTimeAxis(): uPlot.Axis {
  return createAxis({ space: 90, values: (_, times) => formatTimes(times) });
}

export function formatTimes(times: readonly number[]): string[] {
  const step = times.length > 1 ? times[1]! - times[0]! : 0;
  const maxTime = Math.max(...times.map(Math.abs), 0);
  const [unit, scale] = maxTime < 0.9995e-3 ? ["µs", 1e6] : maxTime < 0.9995 ? ["ms", 1e3] : ["s", 1];
  const digits = step > 0 ? Math.min(9, Math.max(0, -Math.floor(Math.log10(step * scale) + 1e-9))) : undefined;
  return times.map((time) => {
    if (time === 0 || digits === undefined) return secondsText(time);
    return `${(time * scale).toFixed(digits)} ${unit}`;
  });
}

/** Creates a plot as wide as its parent. It is drawn again when the width or the theme changes. */
export function createPlot(options: Omit<uPlot.Options, "width">, data: uPlot.AlignedData, parent: HTMLElement): uPlot {
  const getWidth = (): number => Math.max(240, parent.clientWidth);
  const plot = new uPlot({ ...options, width: getWidth(), legend: { show: false, ...options.legend } }, data, parent);
  new ResizeObserver(() => {
    if (getWidth() !== plot.width) plot.setSize({ width: getWidth(), height: plot.height });
  }).observe(parent);
  onThemeChange(() => plot.redraw());
  return plot;
}
