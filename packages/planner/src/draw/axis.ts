import { expectValue } from "@mosaic/core";
import { bytesText, percentText, secondsText } from "./quantity.ts";
import { theme, page, formatCoordinate, text } from "./svg.ts";

/** Positions of times across the page. */
export interface TimeScale {
  readonly seconds: number;
  x(time: number): number;
}

/** Maps times from 0 to `seconds` to the width between the page's margins. */
export function timeScale(seconds: number): TimeScale {
  const duration = Math.max(seconds, 1e-9);
  return { seconds: duration, x: (time) => page.left + (time / duration) * (page.width - page.left - page.right) };
}

/** Draws lines at round times from `top` to `bottom`, with the times below. */
export function timeAxis({ seconds, x }: TimeScale, top: number, bottom: number): string {
  const step = tickStep(seconds / 8);
  const ticks = Array.from({ length: Math.floor(seconds / step + 1e-9) + 1 }, (_, i) => i * step);
  return ticks
    .map((time) => {
      const tickX = formatCoordinate(x(time));
      const line = `<line x1="${tickX}" x2="${tickX}" y1="${formatCoordinate(top)}" y2="${formatCoordinate(bottom)}" stroke="${theme.rule}" stroke-width="1"/>`;
      return (
        line +
        text(x(time), bottom + 18, formatSeconds(time), `text-anchor="middle" font-size="12" fill="${theme.faint}"`)
      );
    })
    .join("\n");
}

/** Returns 1, 2 or 5 times a power of ten, not below `min`. */
export function tickStep(min: number): number {
  const decade = 10 ** Math.floor(Math.log10(min));
  return decade * (min <= decade ? 1 : min <= 2 * decade ? 2 : min <= 5 * decade ? 5 : 10);
}

/**
 * Formats bytes in decimal units, with three digits.
 *
 * @example
 * ```ts
 * import { formatBytes } from "@mosaic/planner";
 * formatBytes(1_234_567); // => "1.23 MB"
 * ```
 */
export function formatBytes(value: number): string {
  expectValue("formatBytes", typeof value === "number", "a number", value);
  return bytesText(value);
}

/**
 * Formats a time in a suitable unit, with three digits.
 *
 * @example
 * ```ts
 * import { formatSeconds } from "@mosaic/planner";
 * formatSeconds(0.01234); // => "12.3 ms"
 * formatSeconds(0); // => "0 s"
 * ```
 */
export function formatSeconds(value: number): string {
  expectValue("formatSeconds", typeof value === "number", "a number", value);
  return secondsText(value);
}

/**
 * Formats a share, where 1 is the whole, as a percentage.
 *
 * @example
 * ```ts
 * import { formatPercent } from "@mosaic/planner";
 * formatPercent(0.5); // => "50 %"
 * ```
 * @throws OptionError unless `share` is a number.
 */
export function formatPercent(share: number): string {
  expectValue("formatPercent", typeof share === "number", "a number", share);
  return percentText(share);
}
