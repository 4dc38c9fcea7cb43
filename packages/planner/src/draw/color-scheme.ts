import type { Timeline, TimelineEvent } from "../time/timeline.ts";

/**
 * Colors that readers with red or green color blindness can distinguish (after Okabe and Ito 2008; darker where white
 * text is drawn on them). Further colors are hues a golden angle apart.
 */
const palette = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#e69f00", "#56b4e9", "#7a4b2a", "#999933"] as const;

/** Colors of compute and of communication. The two are never adjacent in one lane. */
const laneColors = {
  compute: ["#0072b2", "#009e73", "#56b4e9", "#332288"],
  communication: ["#d55e00", "#e69f00", "#aa4499", "#7a4b2a"],
  otherColor: "#8a93a0",
} as const;

/** Returns the color of the i-th of many things of one kind, such as ranks. */
export function paletteColor(i: number): string {
  return palette[i] ?? `hsl(${Math.round((i * 137.508) % 360)} ${[58, 44][i % 2]}% ${[38, 52, 66][i % 3]}%)`;
}

/** Returns black or white, whichever is readable on a color of `laneColors` or `paletteColor`. */
export function contrastColor(color: string): string {
  return luminance(color) > 0.36 ? "#1c2430" : "#ffffff";
}

/** Returns the relative luminance as defined by WCAG 2. */
function luminance(color: string): number {
  const [red, green, blue] = color.startsWith("#") ? parseHex(color) : parseHsl(color);
  const toLinear = (channel: number): number =>
    channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4;
  return 0.2126 * toLinear(red) + 0.7152 * toLinear(green) + 0.0722 * toLinear(blue);
}

type Rgb = readonly [red: number, green: number, blue: number];

function parseHex(color: string): Rgb {
  const channel = (start: number): number => Number.parseInt(color.slice(start, start + 2), 16) / 255;
  return [channel(1), channel(3), channel(5)];
}

function parseHsl(color: string): Rgb {
  const [hue, saturation, lightness] = color.match(/\d+/g)!.map(Number) as [number, number, number];
  const amplitude = (saturation / 100) * Math.min(lightness / 100, 1 - lightness / 100);
  const channel = (n: number): number => {
    const k = (n + hue / 30) % 12;
    return lightness / 100 - amplitude * Math.max(-1, Math.min(k - 3, 9 - k, 1));
  };
  return [channel(0), channel(8), channel(4)];
}

/** The color and name of a group of events. */
export interface Style {
  readonly name: string;
  readonly fill: string;
}

/** How every event of a picture is drawn, and the entries of its legend. */
export interface ColorScheme {
  getStyle(event: TimelineEvent): Style;
  readonly compute: readonly Style[];
  readonly communication: readonly Style[];
}

/** Returns the group of an event: the kernel of compute, or the caller's label of communication. */
function eventGroup({ lane, name, label }: TimelineEvent): string {
  return lane === "compute" ? name : (label ?? name);
}

/** Whether an event computes gradients, which are drawn with stripes in any color. */
export function isBackward({ lane, name }: TimelineEvent): boolean {
  return lane === "compute" && name.startsWith("attendBackward");
}

/**
 * Assigns a color to each group. The groups with the most time receive the lane's own colors, and the rest is gray.
 * With a caller's `group`, equal groups have equal colors in both lanes, in the order of their names.
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
    ? createLaneStyles(totals)
    : { compute: assignStylesByTime(totals, "compute"), communication: assignStylesByTime(totals, "communication") };
  return {
    getStyle: (event) => styles[event.lane].get((group ?? eventGroup)(event))!,
    compute: [...new Set(styles.compute.values())],
    communication: [...new Set(styles.communication.values())],
  };
}

type Lane = TimelineEvent["lane"];
type LaneTotals = Readonly<Record<Lane, ReadonlyMap<string, number>>>;
type Styles = ReadonlyMap<string, Style>;

function createLaneStyles({ compute, communication }: LaneTotals): Readonly<Record<Lane, Styles>> {
  const compareNames = new Intl.Collator("en", { numeric: true }).compare;
  const names = [...new Set([...compute.keys(), ...communication.keys()])].toSorted(compareNames);
  const stylesByName = new Map(names.map((name, i) => [name, { name, fill: paletteColor(i) }]));
  const selectLaneStyles = (lane: ReadonlyMap<string, number>): Styles =>
    new Map([...stylesByName].filter(([name]) => lane.has(name)));
  return { compute: selectLaneStyles(compute), communication: selectLaneStyles(communication) };
}

function assignStylesByTime(totals: LaneTotals, lane: Lane): Styles {
  const palette = laneColors[lane];
  const otherStyle = { name: lane === "compute" ? "other kernels" : "other transfers", fill: laneColors.otherColor };
  // Attention's own kernels come first, so that their colors are the same in every picture.
  const sortPriority = ([name, seconds]: readonly [string, number]): number =>
    name === "attend" ? Number.POSITIVE_INFINITY : name.startsWith("attendBackward") ? Number.MAX_VALUE : seconds;
  const sortedTotals = [...totals[lane]].toSorted(
    (a, b) => sortPriority(b) - sortPriority(a) || (a[0] < b[0] ? -1 : 1),
  );
  const totalSeconds = sortedTotals.reduce((sum, [, seconds]) => sum + seconds, 0);
  const minSeconds = sortedTotals.length > palette.length ? 0.002 * totalSeconds : 0;
  return new Map(
    sortedTotals.map(([name, seconds], i) => {
      const fill = palette[i];
      return [name, fill !== undefined && seconds >= minSeconds ? { name, fill } : otherStyle];
    }),
  );
}
