import type uPlot from "uplot";
import { contrastColor, type Style } from "../src/draw/color-scheme.ts";
import { parseColor, readTheme, type Styles, type Theme } from "./colors.ts";
import { Coverage, packColor } from "./coverage.ts";
import type { EventReference } from "./critical-path.ts";
import { type Kinds, lowerBound, type Run } from "./model.ts";
import { layoutRows, type Row, type Viewport } from "./viewport.ts";

/** The parts of the timelines that are drawn. */
export interface TimelineScene {
  readonly runs: readonly Run[];
  readonly kinds: Kinds;
  readonly styles: Styles;
  readonly view: Viewport;
  /** By kind: 1 if it is shown. */
  readonly isKindShown: Uint8Array;
  /** By run; empty if no path is drawn. */
  readonly paths: readonly (readonly EventReference[])[];
  readonly selectedEvent: (EventReference & { readonly run: number }) | undefined;
}

/** CSS pixels: minimum height of a row, and the heights from which its lanes are separate and its events have names. */
const MIN_ROW_HEIGHT = 4;
const MIN_TWO_LANE_HEIGHT = 8;
const MIN_NAMED_HEIGHT = 22;
/** Share of a row that its compute lane takes. */
const COMPUTE_HEIGHT_SHARE = 0.66;

/** Returns the lanes of a row, as top and height in device pixels. A low row has one lane for both. */
export function layoutLanes({ top, height }: Row, ratio: number): Lanes {
  if (height < MIN_TWO_LANE_HEIGHT * ratio) return { compute: [top, height], communication: [top, height] };
  const innerHeight = height - Math.max(1, Math.round(height * 0.1));
  const compute = Math.round(innerHeight * COMPUTE_HEIGHT_SHARE);
  return { compute: [top, compute], communication: [top + compute, innerHeight - compute] };
}

type Lanes = Readonly<Record<"compute" | "communication", readonly [top: number, height: number]>>;

export function layoutSceneRows(
  { view, runs }: Pick<TimelineScene, "view" | "runs">,
  height: number,
  ratio: number,
): readonly Row[] {
  return layoutRows(view, runs.length, { height, minHeight: MIN_ROW_HEIGHT * ratio });
}

/**
 * Paints rows of events into the plot's area, pixel by pixel. The cost depends on the visible events, and little on the
 * pixels.
 */
export class TimelinePainter {
  #image: ImageData | undefined;
  #coverage: Coverage | undefined;

  paint(plot: uPlot, scene: TimelineScene): void {
    const { left, top, width, height } = plot.bbox;
    if (width < 2 || height < 2) return;
    const theme = readTheme();
    const rows = layoutSceneRows(scene, height, devicePixelRatio);
    const styles = [...scene.styles.compute, ...scene.styles.communication];
    if (this.#image?.width !== width || this.#image.height !== height) {
      this.#image = new ImageData(width, height);
      this.#coverage = undefined;
    }
    this.#coverage ??= new Coverage(width, styles.length);
    const pixels = new Uint32Array(this.#image.data.buffer);
    pixels.fill(packColor(parseColor(theme.paper)));
    const paint: PaintContext = {
      scene,
      pixels,
      width,
      colors: Float32Array.from(styles.flatMap(({ fill }) => parseColor(fill).map((channel) => channel * 255))),
      compute: styleIndices(scene, "compute", styles),
      communication: styleIndices(scene, "communication", styles),
      track: packColor(parseColor(theme.track)),
    };
    for (const row of rows) this.#paintRow(row, paint);
    plot.ctx.putImageData(this.#image, left, top);
    const overlay = { plot, scene, rows, theme, ratio: devicePixelRatio };
    drawNames(overlay);
    drawPaths(overlay);
    drawSelection(overlay);
  }

  /**
   * Paints a row. Low rows have one lane with compute drawn over communication, so that exposed communication shows in
   * its color.
   */
  #paintRow(row: Row, paint: PaintContext): void {
    const { scene, pixels, width, track } = paint;
    const ranks = scene.runs[row.run]!.ranks.slice(row.firstRank, row.endRank);
    const lanes = layoutLanes(row, devicePixelRatio);
    const isSingleLane = lanes.compute[0] === lanes.communication[0];
    for (const lane of ["communication", "compute"] as const) {
      const [top, height] = lanes[lane];
      if (height < 1) continue;
      const offset = top * width;
      if (!isSingleLane || lane === "communication") pixels.fill(track, offset, offset + width);
      const window = { start: scene.view.start, end: scene.view.end, pixels: width };
      const weight = 1 / Math.max(1, ranks.length);
      for (const { events } of ranks) this.#coverage!.add(events, window, { styleIndexByKind: paint[lane], weight });
      this.#coverage!.blend(pixels, offset, paint.colors);
      for (let line = 1; line < height; line++) pixels.copyWithin(offset + line * width, offset, offset + width);
    }
  }
}

interface PaintContext {
  readonly scene: TimelineScene;
  readonly pixels: Uint32Array;
  readonly width: number;
  readonly colors: Float32Array;
  readonly compute: Int16Array;
  readonly communication: Int16Array;
  readonly track: number;
}

/** Returns, by kind, the number of its style if it is shown in a lane, else −1. */
function styleIndices(
  { kinds, styles, isKindShown }: TimelineScene,
  lane: string,
  styleList: readonly Style[],
): Int16Array {
  return Int16Array.from(kinds.allKinds, (kind, i) =>
    kind.lane === lane && isKindShown[i] === 1 ? styleList.indexOf(styles.stylesByKind[i]!) : -1,
  );
}

interface OverlayContext {
  readonly plot: uPlot;
  readonly scene: TimelineScene;
  readonly rows: readonly Row[];
  readonly theme: Theme;
  readonly ratio: number;
}

/** Draws the names of the events that have room for them. */
function drawNames({ plot, scene, rows, ratio }: OverlayContext): void {
  const { ctx, bbox } = plot;
  const { start, end } = scene.view;
  const scale = bbox.width / (end - start);
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  for (const row of rows) {
    const [top, height] = layoutLanes(row, ratio).compute;
    const rank = scene.runs[row.run]!.ranks[row.firstRank];
    if (row.height < MIN_NAMED_HEIGHT * ratio || row.endRank - row.firstRank > 1 || !rank) continue;
    const { events } = rank;
    for (
      let i = lowerBound(events.start, start - events.longestSeconds);
      i < events.count && events.start[i]! < end;
      i++
    ) {
      const kind = scene.kinds.allKinds[events.kind[i]!]!;
      if (kind.lane !== "compute" || scene.isKindShown[events.kind[i]!] === 0) continue;
      const left = Math.max(0, (events.start[i]! - start) * scale);
      const right = Math.min(bbox.width, (events.end[i]! - start) * scale);
      if (right - left < 30 * ratio || ctx.measureText(kind.name).width > right - left - 6 * ratio) continue;
      ctx.fillStyle = contrastColor(scene.styles.stylesByKind[events.kind[i]!]!.fill);
      ctx.fillText(kind.name, bbox.left + left + 3 * ratio, bbox.top + top + height / 2);
    }
  }
  ctx.restore();
}

/** Draws the critical path: a line along its events, and across from rank to rank. */
function drawPaths({ plot, scene, rows, theme, ratio }: OverlayContext): void {
  const { ctx, bbox } = plot;
  const { start, end } = scene.view;
  const x = (time: number): number => bbox.left + ((time - start) / (end - start)) * bbox.width;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.strokeStyle = theme.accent;
  ctx.lineWidth = 2 * ratio;
  for (const [run, path] of scene.paths.entries()) {
    const getRowMiddle = createRowMiddleLookup(rows, run, scene);
    ctx.beginPath();
    let nextMiddle: number | undefined;
    for (const { rank, event } of path) {
      const { events } = scene.runs[run]!.ranks[rank]!;
      const y = bbox.top + getRowMiddle(rank);
      if (nextMiddle !== undefined) ctx.lineTo(x(events.end[event]!), y);
      else ctx.moveTo(x(events.end[event]!), y);
      ctx.lineTo(x(events.start[event]!), y);
      nextMiddle = y;
      if (events.end[event]! < start) break;
    }
    ctx.stroke();
  }
  ctx.restore();
}

/** Returns a function that returns the middle of a rank's compute lane, whether visible or not. */
function createRowMiddleLookup(rows: readonly Row[], run: number, { view }: TimelineScene): (rank: number) => number {
  const visibleRows = new Map(
    rows
      .filter((row) => row.run === run)
      .flatMap(({ firstRank, endRank, top, height }) =>
        Array.from({ length: endRank - firstRank }, (_, i) => [firstRank + i, top + height * 0.33]),
      ),
  );
  const [first] = rows;
  const height = first ? (first.height * 2) / (first.endRank - first.firstRank) : 0;
  return (rank) => visibleRows.get(rank) ?? (rank < view.first ? -1 : 1e5 + height);
}

function drawSelection({ plot, scene, rows, theme, ratio }: OverlayContext): void {
  const { selectedEvent, view } = scene;
  const row = rows.find(
    ({ run, firstRank, endRank }) =>
      selectedEvent?.run === run && selectedEvent.rank >= firstRank && selectedEvent.rank < endRank,
  );
  if (!selectedEvent || !row) return;
  const { events } = scene.runs[selectedEvent.run]!.ranks[selectedEvent.rank]!;
  const [top, height] = layoutLanes(row, ratio)[scene.kinds.allKinds[events.kind[selectedEvent.event]!]!.lane];
  const scale = plot.bbox.width / (view.end - view.start);
  const left = Math.max(0, (events.start[selectedEvent.event]! - view.start) * scale);
  const right = Math.min(plot.bbox.width, (events.end[selectedEvent.event]! - view.start) * scale);
  if (right <= left) return;
  plot.ctx.save();
  plot.ctx.strokeStyle = theme.ink;
  plot.ctx.lineWidth = 2 * ratio;
  plot.ctx.strokeRect(
    plot.bbox.left + left,
    plot.bbox.top + top,
    Math.max(2 * ratio, right - left),
    Math.max(2, height),
  );
  plot.ctx.restore();
}
