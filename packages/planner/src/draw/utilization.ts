import type { Timeline } from "../time/timeline.ts";
import { formatShare, type Scale } from "./axis.ts";
import type { ColorScheme, Style } from "./color-scheme.ts";
import type { Fragment } from "./legend.ts";
import { theme, page, rect, formatCoordinate, text, tooltip } from "./svg.ts";
import { timeShares, waitIntervals } from "./wait-intervals.ts";

const BINS = 240;
const HEIGHT = 128;

/** What all ranks did, when they are too many for a row each: the share of them that does each thing, over time. */
export function aggregateUtilization(
  timeline: Timeline,
  name: string,
  place: { scale: Scale; colouring: ColorScheme; top: number },
): Fragment {
  const { scale, colouring, top } = place;
  const waiting = { name: "waits for transfers", fill: "url(#waiting)" };
  const layers = [...colouring.compute, waiting];
  const shares = utilizationByStyle(timeline, { layers, waiting, colouring, seconds: scale.seconds });
  const floor = new Float64Array(BINS);
  const areas = layers.map((style) => {
    const share = shares.get(style)!;
    const base = Float64Array.from(floor);
    for (let bin = 0; bin < BINS; bin++) floor[bin] = Math.min(1, base[bin]! + share[bin]!);
    const mean = share.reduce((sum, each) => sum + each, 0) / BINS;
    return tooltip(`${style.name}: ${formatShare(mean)} on the mean`, drawArea(base, floor, { style, scale, top }));
  });
  const faint = `font-size="12" fill="${theme.faint}"`;
  const { computing } = timeShares(timeline);
  const svg = [
    text(page.edge, top + 20, `${timeline.ranks.length} ranks`, `font-size="13" font-weight="600"`),
    ...(name === "" ? [] : [text(page.edge, top + 38, name, faint)]),
    text(page.edge, top + (name === "" ? 38 : 56), `${formatShare(computing)} computing`, faint),
    ...[0, 0.5, 1].map((share) =>
      text(page.left - 10, top + HEIGHT * (1 - share) + 4, `${share * 100} %`, `text-anchor="end" ${faint}`),
    ),
    rect(
      { x: scale.x(0), y: top, width: page.width - page.right - scale.x(0), height: HEIGHT },
      `fill="${theme.track}"`,
    ),
    ...areas,
  ];
  return { svg: svg.join("\n"), bottom: top + HEIGHT + 28 };
}

interface UtilizationLayers {
  readonly layers: readonly Style[];
  readonly waiting: Style;
  readonly colouring: ColorScheme;
  readonly seconds: number;
}

/** The share of ranks that does each thing in each of the bins. */
function utilizationByStyle(
  { ranks }: Timeline,
  { layers, waiting, colouring, seconds }: UtilizationLayers,
): Map<Style, Float64Array> {
  const shares = new Map(layers.map((style) => [style, new Float64Array(BINS)]));
  const width = seconds / BINS;
  const weight = 1 / (width * ranks.length);
  for (const { pieces } of ranks) {
    const add = (style: Style, start: number, end: number): void => {
      const into = shares.get(style)!;
      for (let bin = Math.max(0, Math.floor(start / width)); bin < BINS && bin * width < end; bin++) {
        into[bin]! += weight * Math.max(0, Math.min(end, (bin + 1) * width) - Math.max(start, bin * width));
      }
    };
    for (const piece of pieces) if (piece.lane === "compute") add(colouring.styleOf(piece), piece.start, piece.end);
    for (const { start, end } of waitIntervals(pieces)) add(waiting, start, end);
  }
  return shares;
}

function drawArea(base: Float64Array, roof: Float64Array, place: { style: Style; scale: Scale; top: number }): string {
  const { style, scale, top } = place;
  const x = (bin: number): string => formatCoordinate(scale.x((bin / BINS) * scale.seconds));
  const y = (share: number): string => formatCoordinate(top + HEIGHT * (1 - share));
  const up = Array.from(roof, (share, bin) => `${x(bin)} ${y(share)} ${x(bin + 1)} ${y(share)}`);
  const back = Array.from(base, (share, bin) => `${x(bin + 1)} ${y(share)} ${x(bin)} ${y(share)}`).toReversed();
  const outline = `M${up.join(" ")} ${back.join(" ")}z`;
  const fills = style.name.startsWith("attendBackward") ? [style.fill, "url(#backward)"] : [style.fill];
  return fills.map((fill) => `<path d="${outline}" fill="${fill}"/>`).join("");
}
