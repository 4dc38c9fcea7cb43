import { checkFields, checkTimeline, demand } from "../options.ts";
import type { Piece, Timeline } from "../time/timeline.ts";
import { type Scale, scaleOf, timeAxis } from "./axis.ts";
import { type Colouring, colouringOf } from "./colouring.ts";
import { aggregateUtilization } from "./utilization.ts";
import { formatSeconds, formatShare } from "./format.ts";
import { lanesOf, type Rows, rowsFor } from "./lane.ts";
import { legendOf, patterns } from "./legend.ts";
import { document, fitted, footnotes, heading, ink, page, text, widthOf } from "./svg.ts";
import { timeShares } from "./waiting.ts";

/** One run, or what was foretold of it beside what was measured. */
export type Timelines = Timeline | { readonly predicted: Timeline; readonly measured: Timeline };

export interface TimelineSvgOptions {
  /** "Timeline" if absent. */
  readonly title?: string;
  readonly subtitle?: string;
  /** Sentences at the foot of the picture, below those on how the time was spent. */
  readonly facts?: readonly string[];
  /** The ranks that get a row of their own. Up to 16 all do; of more, eight, and all together are drawn above them. */
  readonly ranks?: readonly number[];
  /** What a piece's colour stands for. If absent, the kernel that computes, and the label of a transfer. */
  readonly group?: (piece: Piece) => string;
}

interface Named {
  readonly name: string;
  readonly timeline: Timeline;
}

/** Ranks that all get a row, and how many of more do. */
const ALL = 16;
const SOME = 8;
const TOP = 112;

/**
 * Draws who computed and sent what when, as an SVG document: two lanes for each rank, compute above transfers. Hatching in
 * the compute lane is time in which a rank had nothing to compute while its transfers were under way: communication that
 * compute does not hide. Tooltips show name, bytes and time.
 *
 * With `predicted` and `measured`, both are drawn on one axis, one under the other for every rank.
 *
 * @example
 * ```ts
 * import { timelineSvg } from "@mosaic/planner";
 * const pieces = [{ lane: "compute", name: "attend", start: 0, end: 0.003 }] as const;
 * const svg = timelineSvg({ seconds: 0.004, ranks: [{ rank: 0, at: { sp: 0 }, pieces }] }, { title: "One rank" });
 * svg.includes("<title id=\"title\">One rank</title>"); // => true
 * ```
 */
export function timelineSvg(timelines: Timelines, options: TimelineSvgOptions = {}): string {
  checkFields("timelineSvg", options, ["title", "subtitle", "facts", "ranks", "group"]);
  const { title = "Timeline", subtitle = "", facts = [] } = options;
  for (const words of [title, subtitle]) demand("timelineSvg", typeof words === "string", "strings", words);
  demand(
    "timelineSvg: ranks",
    options.ranks === undefined || Array.isArray(options.ranks),
    "an array of ranks",
    options.ranks,
  );
  demand(
    "timelineSvg: facts",
    Array.isArray(facts) && facts.every((each) => typeof each === "string"),
    "an array of strings",
    facts,
  );
  const named = namesOf(timelines);
  const runs = named.map(({ timeline }) => timeline);
  const scale = scaleOf(Math.max(...runs.map(({ seconds }) => seconds)));
  const colouring = colouringOf(runs, options.group);
  const rows = chosen(runs, options.ranks);
  const crowded = runs.some(({ ranks }) => ranks.length > rows.length);
  let top = TOP;
  const crowds = (crowded ? named : []).map(({ name, timeline }) => {
    const crowd = aggregateUtilization(timeline, name, { scale, colouring, top });
    top = crowd.bottom;
    return crowd.svg;
  });
  const heights = rowsFor(rows.length * named.length);
  const bands = rows.map((rank, i) => {
    return bandsOf(rank, named, {
      scale,
      colouring,
      rows: heights,
      top: top + i * named.length * heights.band,
      first: i === 0,
    });
  });
  const bottom = top + rows.length * named.length * heights.band;
  const legend = legendOf(colouring, bottom + 52);
  const notes = [...named.map(spent), ...compared(timelines), ...facts];
  return document({
    title,
    description: [subtitle, ...notes].filter((words) => words !== "").join(" "),
    height: legend.bottom + notes.length * 20 + 28,
    definitions: patterns,
    body: [
      heading(title, subtitle),
      timeAxis(scale, TOP - 12, bottom + 2),
      ...crowds,
      ...bands,
      legend.svg,
      footnotes(notes, legend.bottom + 16),
    ],
  });
}

function namesOf(timelines: Timelines): readonly Named[] {
  const isPair = typeof timelines === "object" && timelines !== null && "predicted" in timelines;
  const named = isPair
    ? (["predicted", "measured"] as const).map((name) => ({ name, timeline: timelines[name] }))
    : [{ name: "", timeline: timelines }];
  for (const { timeline } of named) checkTimeline("timelineSvg", timeline);
  return named;
}

/** Evenly spread ranks, with the last to end among them. */
function chosen(runs: readonly Timeline[], wanted: readonly number[] | undefined): readonly number[] {
  const known = [...new Set(runs.flatMap(({ ranks }) => ranks.map(({ rank }) => rank)))].toSorted((a, b) => a - b);
  if (wanted) return wanted.filter((rank) => known.includes(rank));
  if (known.length * runs.length <= ALL) return known;
  const spread = Array.from({ length: SOME }, (_, i) => known[Math.round((i * (known.length - 1)) / (SOME - 1))]!);
  const ends = runs
    .flatMap(({ ranks }) => ranks)
    .map(({ rank, pieces }) => ({ rank, end: pieces.reduce((end, each) => Math.max(end, each.end), 0) }));
  const last = ends.reduce((a, b) => (b.end > a.end ? b : a));
  return [...new Set([...spread, last.rank])].toSorted((a, b) => a - b);
}

interface BandPlace {
  readonly scale: Scale;
  readonly colouring: Colouring;
  readonly rows: Rows;
  readonly top: number;
  /** Whether to label the two lanes. */
  readonly first: boolean;
}

function bandsOf(rank: number, named: readonly Named[], { rows, top, first, ...place }: BandPlace): string {
  const faint = `font-size="${Math.max(9, rows.font - 2)}" fill="${ink.faint}"`;
  const own = named.map(({ timeline }) => timeline.ranks.find((each) => each.rank === rank));
  const at = Object.entries(own.find((each) => each)?.at ?? {}).map(([axis, index]) => `${axis} ${index}`);
  const where = rows.band >= 40 ? fitted(at.join(" · "), rows.font - 2, page.left - page.edge - 8) : "";
  const room = page.left - page.edge - 76 > widthOf(where, rows.font - 2);
  const drawn = named.map(({ name }, i) => {
    const y = top + i * rows.band;
    const right = (words: string, at: number) => text(page.left - 10, at, words, `text-anchor="end" ${faint}`);
    return [
      name !== "" ? right(name, y + rows.compute * 0.72) : first ? right("computes", y + rows.compute * 0.72) : "",
      name === "" && first && room && rows.send >= 8 ? right("transfers", y + rows.compute + 3 + rows.send * 0.9) : "",
      lanesOf(own[i]?.pieces ?? [], { ...place, rows, top: y }),
    ].join("\n");
  });
  return [
    text(page.edge, top + rows.compute * 0.72, `rank ${rank}`, `font-size="${rows.font}" font-weight="600"`),
    where === "" ? "" : text(page.edge, top + rows.compute * 0.72 + rows.font + 3, where, faint),
    ...drawn,
  ].join("\n");
}

function spent({ name, timeline }: Named): string {
  const { computing, waiting, idle } = timeShares(timeline);
  const who = name === "" ? "" : `${name[0]!.toUpperCase()}${name.slice(1)}: `;
  return `${who}${formatSeconds(timeline.seconds)}; of the ranks' time, ${formatShare(computing)} computing, ${formatShare(waiting)} waiting for transfers, ${formatShare(idle)} idle.`;
}

function compared(timelines: Timelines): readonly string[] {
  if (!("predicted" in timelines)) return [];
  const { predicted, measured } = timelines;
  if (measured.seconds <= 0) return [];
  const off = predicted.seconds / measured.seconds - 1;
  return [`The prediction is ${formatShare(Math.abs(off))} ${off < 0 ? "below" : "above"} what was measured.`];
}
