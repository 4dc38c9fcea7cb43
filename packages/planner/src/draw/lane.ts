import type { Piece } from "../time/timeline.ts";
import { formatBytes, formatSeconds, type Scale } from "./axis.ts";
import { type Colouring, inkOn, isBackward, type Style } from "./colouring.ts";
import { type Box, ink, page, rect, text, tip, widthOf } from "./svg.ts";
import { type Interval, waits } from "./waiting.ts";

/** Heights within a rank's band, and the size of its text. */
export interface Rows {
  readonly band: number;
  readonly compute: number;
  readonly send: number;
  readonly font: number;
}

/** Many bands get thinner rows. */
export function rowsFor(bands: number): Rows {
  if (bands <= 8) return { band: 62, compute: 28, send: 12, font: 13 };
  return bands <= 16 ? { band: 40, compute: 18, send: 8, font: 11 } : { band: 24, compute: 11, send: 5, font: 9 };
}

export interface LanePlace {
  readonly scale: Scale;
  readonly top: number;
  readonly rows: Rows;
  readonly colouring: Colouring;
}

/** What one rank did: compute, with what it waited for, above its transfers. */
export function lanesOf(pieces: readonly Piece[], { scale, top, rows, colouring }: LanePlace): string {
  const sendTop = top + rows.compute + 3;
  const compute = runsOf(pieces, "compute", { scale, colouring });
  const communication = runsOf(pieces, "communication", { scale, colouring });
  const across = { x: scale.x(0), width: page.width - page.right - scale.x(0) };
  const depths = stacked(communication);
  const depth = Math.max(1, ...depths.map((each) => each + 1));
  const height = rows.send / depth;
  const hatched = waits(pieces).filter(({ start, end }) => scale.x(end) - scale.x(start) > 0.6);
  return [
    rect({ ...across, y: top, height: rows.compute }, `fill="${ink.track}" rx="3"`),
    rect({ ...across, y: sendTop, height: rows.send }, `fill="${ink.track}" rx="2"`),
    ...hatched.map((wait) => waitOf(wait, boxOf(wait, scale, { y: top, height: rows.compute }))),
    ...compute.map((run) => bar(run, boxOf(run, scale, { y: top, height: rows.compute }))),
    ...compute.map((run) => label(run, boxOf(run, scale, { y: top, height: rows.compute }), rows.font)),
    ...communication.map((run, i) => bar(run, boxOf(run, scale, { y: sendTop + depths[i]! * height, height }))),
  ]
    .filter((part) => part !== "")
    .join("\n");
}

/** Neighbouring pieces of one style, too thin to be distinguished, as one. */
interface Run extends Interval {
  readonly style: Style;
  readonly backward: boolean;
  readonly pieces: number;
  readonly bytes: number;
  readonly lane: Piece["lane"];
}

/** Pixels below which a bar is merged with its like, or left out beside others. */
const THIN = 3;
const INVISIBLE = 0.6;

function runsOf(
  pieces: readonly Piece[],
  lane: Piece["lane"],
  { scale, colouring }: Pick<LanePlace, "scale" | "colouring">,
): readonly Run[] {
  const runs: Run[] = [];
  for (const piece of pieces.filter((each) => each.lane === lane).toSorted((a, b) => a.start - b.start)) {
    const style = colouring.styleOf(piece);
    const last = runs.at(-1);
    const width = scale.x(piece.end) - scale.x(piece.start);
    const gap = last ? scale.x(piece.start) - scale.x(last.end) : Number.POSITIVE_INFINITY;
    const run = {
      style,
      lane,
      backward: isBackward(piece),
      start: piece.start,
      end: piece.end,
      pieces: 1,
      bytes: piece.bytesSent ?? 0,
    };
    if (last && last.style === style && gap < INVISIBLE && gap > -THIN && width < THIN) {
      const end = Math.max(last.end, piece.end);
      runs[runs.length - 1] = { ...last, end, pieces: last.pieces + 1, bytes: last.bytes + run.bytes };
    } else if (width >= INVISIBLE || gap >= INVISIBLE) runs.push(run);
  }
  return runs;
}

/** Transfers at the same time lie beside one another: which row each has. */
function stacked(runs: readonly Run[]): readonly number[] {
  const ends: number[] = [];
  return runs.map(({ start, end }) => {
    const free = ends.findIndex((busy) => busy <= start + 1e-12);
    const row = free < 0 ? ends.length : free;
    ends[row] = end;
    return row;
  });
}

function boxOf({ start, end }: Interval, { x }: Scale, { y, height }: Pick<Box, "y" | "height">): Box {
  const [left, right] = [x(start), x(end)];
  return { x: left, y, width: Math.max(INVISIBLE, right - left - (right - left > THIN ? 0.8 : 0)), height };
}

function bar({ style, backward, start, end, pieces, bytes, lane }: Run, box: Box): string {
  const many = pieces > 1 ? ` (${pieces} of them)` : "";
  const sent = lane === "communication" ? `, sends ${formatBytes(bytes)}` : "";
  const words = `${style.name}${many}${sent}: ${formatSeconds(start)} to ${formatSeconds(end)}, ${formatSeconds(end - start)}`;
  const corner = box.width > 2 * THIN ? ` rx="${Math.min(3, box.height / 3).toFixed(1)}"` : "";
  const filled = (fill: string): string => rect(box, `fill="${fill}"${corner}`);
  return tip(words, filled(style.fill) + (backward ? filled("url(#backward)") : ""));
}

function label({ style }: Run, box: Box, size: number): string {
  if (box.width < widthOf(style.name, size) + 3) return "";
  const place = `text-anchor="middle" font-size="${size}" font-weight="550"`;
  return text(box.x + box.width / 2, box.y + box.height * 0.68, style.name, `${place} fill="${inkOn(style.fill)}"`);
}

function waitOf({ start, end }: Interval, box: Box): string {
  return tip(
    `waits for transfers: ${formatSeconds(start)} to ${formatSeconds(end)}, ${formatSeconds(end - start)}`,
    rect(box, `fill="url(#waiting)"`),
  );
}
