import { colorScheme, type Style } from "../src/draw/color-scheme.ts";
import type { Kinds, Run } from "./model.ts";

/** How the kinds of events of a page are drawn, by number, and the entries of the legends. */
export interface Styles {
  readonly stylesByKind: readonly Style[];
  readonly compute: readonly Style[];
  readonly communication: readonly Style[];
}

/** Assigns styles as in the planner's pictures: the kinds that take most time have colors of their own. */
export function assignStyles(runs: readonly Run[], kinds: Kinds): Styles {
  const secondsByKind = new Float64Array(kinds.allKinds.length);
  for (const { ranks } of runs) {
    for (const { events } of ranks) {
      for (let i = 0; i < events.count; i++) {
        secondsByKind[events.kind[i]!]! += (events.end[i]! - events.start[i]!) * events.share[i]!;
      }
    }
  }
  const events = kinds.allKinds.map((kind, i) => ({ ...kind, start: 0, end: secondsByKind[i]! }));
  const scheme = colorScheme([{ seconds: 0, ranks: [{ rank: 0, at: {}, events }] }]);
  return {
    stylesByKind: events.map((event) => scheme.getStyle(event)),
    compute: scheme.compute,
    communication: scheme.communication,
  };
}

export type Rgb = readonly [red: number, green: number, blue: number];

const colorCache = new Map<string, Rgb>();

/** Converts a CSS color to numbers from 0 to 1. */
export function parseColor(color: string): Rgb {
  let rgb = colorCache.get(color);
  if (!rgb) {
    const canvas = new OffscreenCanvas(1, 1);
    const context = canvas.getContext("2d", { willReadFrequently: true })!;
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    const [red = 0, green = 0, blue = 0] = context.getImageData(0, 0, 1, 1).data;
    colorCache.set(color, (rgb = [red / 255, green / 255, blue / 255]));
  }
  return rgb;
}

/** The page's colors, which are different in dark mode. */
export interface Theme {
  readonly ink: string;
  readonly faint: string;
  readonly rule: string;
  readonly track: string;
  readonly paper: string;
  readonly accent: string;
}

export function readTheme(): Theme {
  const style = getComputedStyle(document.documentElement);
  const color = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: color("ink"),
    faint: color("faint"),
    rule: color("rule"),
    track: color("track"),
    paper: color("paper"),
    accent: color("accent"),
  };
}

/** Calls back when the page changes between light and dark mode. */
export function onThemeChange(listener: () => void): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", listener);
}
