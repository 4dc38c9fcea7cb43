import type { Timeline, TimelineEvent } from "../time/timeline.ts";
import { page, rect, text, textWidth, theme, tooltip, truncate } from "./svg.ts";

/**
 * Colors that readers without red or green distinguish, too (after Okabe and Ito 2008; darker where white text stands
 * on them). Beyond them, hues a golden angle apart.
 */
const palette = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#e69f00", "#56b4e9", "#7a4b2a", "#999933"] as const;

/** What compute is drawn with, and what communication is: the two are never side by side in one lane. */
const paletteByLane = {
  compute: ["#0072b2", "#009e73", "#56b4e9", "#332288"],
  communication: ["#d55e00", "#e69f00", "#aa4499", "#7a4b2a"],
  rest: "#8a93a0",
} as const;

/** The color of the i-th of many like things: ranks, for example. */
export function paletteColor(i: number): string {
  return palette[i] ?? `hsl(${Math.round((i * 137.508) % 360)} ${[58, 44][i % 2]}% ${[38, 52, 66][i % 3]}%)`;
}

/** Black or white, whichever can be read on a color of `paletteByLane` or `paletteColor`. */
export function contrastColor(color: string): string {
  return luminance(color) > 0.36 ? "#1c2430" : "#ffffff";
}

/** Relative luminance after WCAG 2. */
function luminance(color: string): number {
  const [red, green, blue] = color.startsWith("#") ? parseHex(color) : parseHsl(color);
  const linear = (part: number): number => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
}

type Rgb = readonly [red: number, green: number, blue: number];

function parseHex(color: string): Rgb {
  const part = (at: number): number => Number.parseInt(color.slice(at, at + 2), 16) / 255;
  return [part(1), part(3), part(5)];
}

function parseHsl(color: string): Rgb {
  const [hue, saturation, lightness] = color.match(/\d+/g)!.map(Number) as [number, number, number];
  const reach = (saturation / 100) * Math.min(lightness / 100, 1 - lightness / 100);
  const part = (n: number): number => {
    const k = (n + hue / 30) % 12;
    return lightness / 100 - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1));
  };
  return [part(0), part(8), part(4)];
}

/** What stands for a group of events. */
export interface Style {
  readonly name: string;
  readonly fill: string;
}

/** How every event of a picture is drawn, and what the legend states. */
export interface ColorScheme {
  styleOf(event: TimelineEvent): Style;
  readonly compute: readonly Style[];
  readonly communication: readonly Style[];
}

/** What compute events are distinguished by: the kernel; and communication: the caller's label. */
function eventGroup({ lane, name, label }: TimelineEvent): string {
  return lane === "compute" ? name : (label ?? name);
}

/** Gradients carry stripes, whatever their color. */
export function isBackward({ lane, name }: TimelineEvent): boolean {
  return lane === "compute" && name.startsWith("attendBackward");
}

/**
 * Gives each group a color: those with most time get the lane's own, what is left over is grey. With a caller's `group`,
 * equal groups have equal colors in both lanes, in the order of their names.
 */
export function colorScheme(timelines: readonly Timeline[], group?: (event: TimelineEvent) => string): ColorScheme {
  const totals = { compute: new Map<string, number>(), communication: new Map<string, number>() };
  for (const { ranks } of timelines) {
    for (const { events } of ranks) {
      for (const event of events) {
        const name = (group ?? eventGroup)(event);
        totals[event.lane].set(name, (totals[event.lane].get(name) ?? 0) + event.end - event.start);
      }
    }
  }
  const styles = group
    ? stylesByLane(totals)
    : { compute: rankByTime(totals, "compute"), communication: rankByTime(totals, "communication") };
  return {
    styleOf: (event) => styles[event.lane].get((group ?? eventGroup)(event))!,
    compute: [...new Set(styles.compute.values())],
    communication: [...new Set(styles.communication.values())],
  };
}

type Lane = TimelineEvent["lane"];
type Totals = Readonly<Record<Lane, ReadonlyMap<string, number>>>;
type Styles = ReadonlyMap<string, Style>;

function stylesByLane({ compute, communication }: Totals): Readonly<Record<Lane, Styles>> {
  const inOrder = new Intl.Collator("en", { numeric: true }).compare;
  const names = [...new Set([...compute.keys(), ...communication.keys()])].toSorted(inOrder);
  const all = new Map(names.map((name, i) => [name, { name, fill: paletteColor(i) }]));
  const of = (lane: ReadonlyMap<string, number>): Styles => new Map([...all].filter(([name]) => lane.has(name)));
  return { compute: of(compute), communication: of(communication) };
}

function rankByTime(totals: Totals, lane: Lane): Styles {
  const palette = paletteByLane[lane];
  const rest = { name: lane === "compute" ? "other kernels" : "other transfers", fill: paletteByLane.rest };
  // Attention's own kernels first: the same colors in every picture.
  const weight = ([name, seconds]: readonly [string, number]): number =>
    name === "attend" ? Number.POSITIVE_INFINITY : name.startsWith("attendBackward") ? Number.MAX_VALUE : seconds;
  const order = [...totals[lane]].toSorted((a, b) => weight(b) - weight(a) || (a[0] < b[0] ? -1 : 1));
  const all = order.reduce((sum, [, seconds]) => sum + seconds, 0);
  const small = order.length > palette.length ? 0.002 * all : 0;
  return new Map(
    order.map(([name, seconds], i) => {
      const fill = palette[i];
      return [name, fill !== undefined && seconds >= small ? { name, fill } : rest];
    }),
  );
}

export interface Fragment {
  readonly svg: string;
  /** The first free line below. */
  readonly bottom: number;
}

/** Stripes of gradients, and of waiting. */
export const patterns = `<defs><pattern id="backward" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2.4" height="7" fill="#ffffff" fill-opacity="0.24"/></pattern>
<pattern id="waiting" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><rect width="6" height="6" fill="#f7d9d4"/><rect width="1.6" height="6" fill="#b3261e"/></pattern></defs>`;

const FONT_SIZE = 13;

interface LegendEntry {
  readonly name: string;
  readonly fills: readonly string[];
}

/** What the colors mean, from `top` on. */
export function drawLegend({ compute, communication }: ColorScheme, top: number): Fragment {
  const plain = ({ name, fill }: Style): LegendEntry => {
    return { name, fills: name.startsWith("attendBackward") ? [fill, "url(#backward)"] : [fill] };
  };
  const shared = compute.some(({ fill }) => communication.some((other) => other.fill === fill));
  const waiting = { name: "waits for transfers", fills: ["url(#waiting)"] };
  if (shared) {
    const all = [...new Set([...compute, ...communication])];
    return drawLegendRow("colors", [...all.map(plain), waiting], top);
  }
  const first = drawLegendRow("computes", [...compute.map(plain), waiting], top);
  const second = drawLegendRow("transfers", communication.map(plain), first.bottom);
  return { svg: `${first.svg}\n${second.svg}`, bottom: second.bottom };
}

/** Entries side by side, wrapped at the margin, after a faint heading. */
function drawLegendRow(heading: string, entries: readonly LegendEntry[], top: number): Fragment {
  if (entries.length === 0) return { svg: "", bottom: top };
  const first = page.edge + 88;
  let [x, y] = [first, top];
  const availableWidth = page.width - page.edge - first - 20;
  const drawn = entries.map(({ name: whole, fills }) => {
    const name = truncate(whole, FONT_SIZE, availableWidth);
    const width = textWidth(name, FONT_SIZE) + 44;
    if (x > first && x + width > page.width - page.edge) [x, y] = [first, y + 22];
    const box = { x, y: y - 11, width: 13, height: 13 };
    const svg =
      fills.map((fill) => rect(box, `fill="${fill}" rx="3"`)).join("") +
      text(x + 20, y, name, `font-size="${FONT_SIZE}"`);
    x += width;
    return name === whole ? svg : tooltip(whole, svg);
  });
  const head = text(page.edge, top, heading, `font-size="${FONT_SIZE}" fill="${theme.faint}"`);
  return { svg: [head, ...drawn].join("\n"), bottom: y + 24 };
}

/**
 * Colours that readers without red or green distinguish, too (after Okabe and Ito 2008; darker where white text stands
 * on them). Beyond them, hues a golden angle apart.
 */
