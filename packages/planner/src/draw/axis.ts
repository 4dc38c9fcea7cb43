import { formatSeconds } from "./format.ts";
import { ink, page, short, text } from "./svg.ts";

/** Where moments lie across the page. */
export interface Scale {
  readonly seconds: number;
  x(time: number): number;
}

/** Puts 0 to `seconds` between the page's margins. */
export function scaleOf(seconds: number): Scale {
  const whole = Math.max(seconds, 1e-9);
  return { seconds: whole, x: (time) => page.left + (time / whole) * (page.width - page.left - page.right) };
}

/** Lines at round times from `top` to `bottom`, with the times below. */
export function timeAxis({ seconds, x }: Scale, top: number, bottom: number): string {
  const step = niceStep(seconds / 8);
  const ticks = Array.from({ length: Math.floor(seconds / step + 1e-9) + 1 }, (_, i) => i * step);
  return ticks
    .map((time) => {
      const at = short(x(time));
      const line = `<line x1="${at}" x2="${at}" y1="${short(top)}" y2="${short(bottom)}" stroke="${ink.rule}" stroke-width="1"/>`;
      return (
        line +
        text(x(time), bottom + 18, formatSeconds(time), `text-anchor="middle" font-size="12" fill="${ink.faint}"`)
      );
    })
    .join("\n");
}

/** 1, 2 or 5 times a power of ten, not below `least`. */
export function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * (least <= power ? 1 : least <= 2 * power ? 2 : least <= 5 * power ? 5 : 10);
}
