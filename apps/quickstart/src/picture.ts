import { bytes, seconds } from "./format.ts";
import type { Block, Lane, Transfer } from "./timeline.ts";

/** What the picture says around the lanes. */
export interface Caption {
  readonly title: string;
  readonly subtitle: string;
  /** What each rank holds, by rank. */
  readonly holdings: readonly string[];
  /** Facts at the foot, one a line. */
  readonly facts: readonly string[];
}

const WIDTH = 1120;
const LEFT = 164;
const RIGHT = 36;
const TOP = 112;
const INK = "#1c2430";
const FAINT = "#69727f";
const TRACK = "#eef1f5";
const PALETTE = ["#3366cc", "#e08214", "#2a9d6f", "#b5446e", "#7a5cc4", "#8c6d46", "#1f9bb3", "#a3a124"];

/** Who computed with, and sent, whose keys and values when: one pair of rows per rank, as an SVG document. */
export function picture(lanes: readonly Lane[], caption: Caption): string {
  const rows = rowHeights(lanes.length);
  const end = Math.max(
    1e-9,
    ...lanes.flatMap(({ compute, communication }) => [...compute, ...communication].map((block) => block.end)),
  );
  const x = (time: number): number => LEFT + (time / end) * (WIDTH - LEFT - RIGHT);
  const bottom = TOP + lanes.length * rows.band;
  const legend = legendOf(lanes, caption.holdings, bottom + 52);
  const height = legend.bottom + caption.facts.length * 20 + 24;
  const body = [
    text(32, 44, caption.title, `font-size="22" font-weight="650"`),
    text(32, 70, caption.subtitle, `font-size="14" fill="${FAINT}"`),
    axis(end, x, bottom),
    ...lanes.map((lane, index) => laneOf(lane, { x, end, top: TOP + index * rows.band, rows })),
    legend.svg,
    ...caption.facts.map((fact, i) => text(32, legend.bottom + 16 + i * 20, fact, `font-size="13" fill="${FAINT}"`)),
  ];
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" fill="${INK}">
<title>${escape(caption.title)}</title>
${HATCH}
<rect width="${WIDTH}" height="${height}" fill="#ffffff"/>
${body.join("\n")}
</svg>
`;
}

/** Backward blocks carry stripes. */
const HATCH = `<defs><pattern id="backward" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2.4" height="7" fill="#ffffff" fill-opacity="0.2"/></pattern></defs>`;

interface Rows {
  /** A rank's whole height, its two bars, and the size of the text within. */
  readonly band: number;
  readonly compute: number;
  readonly send: number;
  readonly font: number;
}

/** Many ranks get thinner rows. */
function rowHeights(ranks: number): Rows {
  if (ranks <= 8) return { band: 62, compute: 28, send: 12, font: 13 };
  return ranks <= 16 ? { band: 40, compute: 18, send: 8, font: 11 } : { band: 24, compute: 11, send: 5, font: 9 };
}

interface LanePlace {
  readonly x: (time: number) => number;
  readonly end: number;
  readonly top: number;
  readonly rows: Rows;
}

function laneOf(lane: Lane, { x, end, top, rows }: LanePlace): string {
  const sendTop = top + rows.compute + 3;
  const names = `text-anchor="end" font-size="${rows.font}"`;
  return [
    text(32, top + rows.compute * 0.72, `rank ${lane.rank}`, `font-size="${rows.font}" font-weight="600"`),
    text(LEFT - 12, top + rows.compute * 0.72, "computes", `${names} fill="${FAINT}"`),
    text(LEFT - 12, sendTop + rows.send * 0.9, "sends", `${names} fill="${FAINT}"`),
    rect(x(0), top, WIDTH - RIGHT - x(0), rows.compute, `fill="${TRACK}" rx="3"`),
    rect(x(0), sendTop, WIDTH - RIGHT - x(0), rows.send, `fill="${TRACK}" rx="2"`),
    ...lane.compute.map((block) =>
      bar(block, { x, y: top, height: rows.compute, name: "attends to keys and values of" }),
    ),
    ...lane.compute.map((block) => label(block, x, top + rows.compute * 0.68, rows.font)),
    ...lane.communication.map((block) =>
      bar(block, { x, y: sendTop, height: rows.send, name: `sends ${bytes(block.bytes)} about keys and values of` }),
    ),
    ...lane.communication.map((block, index) =>
      size(block, {
        x,
        y: sendTop + rows.send * 0.85,
        until: lane.communication[index + 1]?.start ?? end,
        font: rows.send - 1,
      }),
    ),
  ].join("\n");
}

interface BarPlace {
  readonly x: (time: number) => number;
  readonly y: number;
  readonly height: number;
  readonly name: string;
}

function bar(block: Block, { x, y, height, name }: BarPlace): string {
  const [left, right] = [x(block.start), x(block.end)];
  const width = Math.max(2, right - left - 0.8);
  const tip = `${name} rank ${block.source}${block.backward ? ", backward" : ""}: ${seconds(block.start)} to ${seconds(block.end)}`;
  const box = (fill: string): string =>
    rect(left, y, width, height, `fill="${fill}" rx="${Math.min(3, width / 2).toFixed(1)}"`);
  return `<g><title>${escape(tip)}</title>${box(colour(block.source))}${block.backward ? box("url(#backward)") : ""}</g>`;
}

function label(block: Block, x: (time: number) => number, y: number, size: number): string {
  const width = x(block.end) - x(block.start);
  const full = `${block.backward ? "∇ " : ""}K, V of rank ${block.source}`;
  const words = width > full.length * size * 0.62 ? full : width > size * 1.6 ? String(block.source) : "";
  if (words === "") return "";
  return text(
    (x(block.start) + x(block.end)) / 2,
    y,
    words,
    `text-anchor="middle" font-size="${size}" fill="#ffffff" font-weight="550"`,
  );
}

interface SizePlace {
  readonly x: (time: number) => number;
  readonly y: number;
  /** When the next transfer needs the room. */
  readonly until: number;
  readonly font: number;
}

/** How much was sent in what time, behind its bar, if there is room before the next. */
function size(block: Transfer, { x, y, until, font }: SizePlace): string {
  const words = `${bytes(block.bytes)} in ${seconds(block.end - block.start)}`;
  const left = Math.max(x(block.end), x(block.start) + 2) + 4;
  if (font < 8 || x(until) - left < words.length * font * 0.62) return "";
  return text(left, y, words, `font-size="${font}" fill="${FAINT}"`);
}

function axis(end: number, x: (time: number) => number, bottom: number): string {
  const step = niceStep(end / 8);
  const ticks = Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, i) => i * step);
  return ticks
    .map((time) =>
      [
        `<line x1="${x(time).toFixed(1)}" x2="${x(time).toFixed(1)}" y1="${TOP - 12}" y2="${bottom + 2}" stroke="#d9dee5" stroke-width="1"/>`,
        text(x(time), bottom + 20, seconds(time), `text-anchor="middle" font-size="12" fill="${FAINT}"`),
      ].join("\n"),
    )
    .join("\n");
}

/** 1, 2 or 5 times a power of ten, not below `least`. */
function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * (least <= power ? 1 : least <= 2 * power ? 2 : least <= 5 * power ? 5 : 10);
}

function legendOf(lanes: readonly Lane[], holdings: readonly string[], top: number): { svg: string; bottom: number } {
  const stripes = lanes.some(({ compute }) => compute.some(({ backward }) => backward)) ? " Stripes: backward." : "";
  const longest = Math.max(...holdings.map((holding) => holding.length));
  const columns = Math.max(1, Math.min(4, holdings.length, Math.floor((WIDTH - 64) / (longest * 7.6 + 36))));
  const width = (WIDTH - 64) / columns;
  const entries = holdings.map((holding, rank) => {
    const [left, y] = [32 + (rank % columns) * width, top + 24 + Math.floor(rank / columns) * 22];
    return rect(left, y - 11, 13, 13, `fill="${colour(rank)}" rx="3"`) + text(left + 20, y, holding, `font-size="13"`);
  });
  const head = text(
    32,
    top,
    `Colour: the rank whose keys and values are attended to, or sent on.${stripes}`,
    `font-size="13" fill="${FAINT}"`,
  );
  return { svg: [head, ...entries].join("\n"), bottom: top + 24 + Math.ceil(holdings.length / columns) * 22 };
}

/** Eight chosen colours, then hues a golden angle apart. */
function colour(rank: number): string {
  return PALETTE[rank] ?? `hsl(${Math.round((rank * 137.508) % 360)} 48% ${rank % 2 === 0 ? 42 : 54}%)`;
}

function rect(x: number, y: number, width: number, height: number, rest: string): string {
  return `<rect x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${width.toFixed(1)}" height="${height}" ${rest}/>`;
}

function text(x: number, y: number, words: string, rest: string): string {
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" ${rest}>${escape(words)}</text>`;
}

function escape(words: string): string {
  return words.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
