/** What part of a timeline is shown: seconds, and ranks by their index. */
export interface Viewport {
  readonly start: number;
  readonly end: number;
  readonly first: number;
  readonly last: number;
}

/** How far there is anything to show. */
export interface Extent {
  readonly seconds: number;
  readonly ranks: number;
}

/** A nanosecond is what times are rounded to: a window of a few has nothing to show. */
const MIN_SECONDS = 2e-8;

export function wholeViewport({ seconds, ranks }: Extent): Viewport {
  return { start: 0, end: seconds, first: 0, last: ranks };
}

/** Shifted by a share of its width and of its height, as far as there is anything. */
export function pan(view: Viewport, extent: Extent, [across, down]: readonly [across: number, down: number]): Viewport {
  const [start, end] = shifted([view.start, view.end], across, extent.seconds);
  const [first, last] = shifted([view.first, view.last], down, extent.ranks);
  return { start, end, first, last };
}

function shifted([from, to]: readonly [number, number], share: number, most: number): readonly [number, number] {
  const length = to - from;
  const start = Math.min(Math.max(0, from + share * length), Math.max(0, most - length));
  return [start, start + length];
}

/** Scaled about a point, by shares of width and height; factors below 1 show less. */
export function zoom(
  view: Viewport,
  extent: Extent,
  {
    time = 1,
    ranks = 1,
    at,
  }: { readonly time?: number; readonly ranks?: number; readonly at: readonly [number, number] },
): Viewport {
  const [start, end] = scaled([view.start, view.end], time, { at: at[0], least: MIN_SECONDS, most: extent.seconds });
  const [first, last] = scaled([view.first, view.last], ranks, { at: at[1], least: 1, most: extent.ranks });
  return { start, end, first, last };
}

function scaled(
  [from, to]: readonly [number, number],
  factor: number,
  { at, least, most }: { readonly at: number; readonly least: number; readonly most: number },
): readonly [number, number] {
  const length = Math.min(most, Math.max(Math.min(least, most), (to - from) * factor));
  const start = Math.min(Math.max(0, from + at * (to - from - length)), most - length);
  return [start, start + length];
}

/** Moved just so far that an event, or a rank, is in sight. */
export function reveal(
  view: Viewport,
  extent: Extent,
  { start, end, rank }: { start: number; end: number; rank: number },
): Viewport {
  const length = view.end - view.start;
  const isTimeShown = start >= view.start && start <= view.end - Math.min(end - start, length);
  const across = isTimeShown ? 0 : ((start + end) / 2 - (view.start + view.end) / 2) / length;
  const height = view.last - view.first;
  const down =
    rank < view.first ? (rank - view.first) / height : rank + 1 > view.last ? (rank + 1 - view.last) / height : 0;
  return pan(view, extent, [across, down]);
}

/** A row of the picture: one rank of one run, or several ranks of one run where there are more than rows. */
export interface Row {
  readonly run: number;
  /** Indices of ranks. */
  readonly from: number;
  readonly to: number;
  readonly top: number;
  readonly height: number;
}

/** Rows of at least `least` pixels that fill a height, those of the runs of a rank one below the other. */
export function layoutRows(
  view: Viewport,
  runs: number,
  { height, least }: { height: number; least: number },
): readonly Row[] {
  const perRank = height / (view.last - view.first);
  const together = Math.max(1, Math.ceil((least * runs) / perRank));
  const rows: Row[] = [];
  const first = Math.floor(view.first / together) * together;
  for (let from = first; from < view.last; from += together) {
    const top = (from - view.first) * perRank;
    const bottom = (from + together - view.first) * perRank;
    for (let run = 0; run < runs; run++) {
      const [y0, y1] = [run, run + 1].map((i) => Math.round(top + ((bottom - top) * i) / runs)) as [number, number];
      const [clippedTop, clippedBottom] = [Math.max(0, y0), Math.min(height, y1)];
      if (clippedBottom <= clippedTop) continue;
      rows.push({ run, from, to: from + together, top: clippedTop, height: clippedBottom - clippedTop });
    }
  }
  return rows;
}
