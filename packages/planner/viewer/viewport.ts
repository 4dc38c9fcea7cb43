/** The part of a timeline that is shown: seconds, and ranks by index. */
export interface Viewport {
  readonly start: number;
  readonly end: number;
  readonly first: number;
  readonly last: number;
}

/** Total seconds and number of ranks. */
export interface Extent {
  readonly seconds: number;
  readonly ranks: number;
}

/**
 * Minimum length of a window. Times are rounded to nanoseconds, so a window of a few nanoseconds has nothing to show.
 */
const MIN_VIEW_SECONDS = 2e-8;

export function wholeViewport({ seconds, ranks }: Extent): Viewport {
  return { start: 0, end: seconds, first: 0, last: ranks };
}

/** Moves the view by a share of its width and of its height, within the extent. */
export function pan(
  view: Viewport,
  extent: Extent,
  [xShare, yShare]: readonly [across: number, down: number],
): Viewport {
  const [start, end] = shiftRange([view.start, view.end], xShare, extent.seconds);
  const [first, last] = shiftRange([view.first, view.last], yShare, extent.ranks);
  return { start, end, first, last };
}

function shiftRange([low, high]: readonly [number, number], share: number, maximum: number): readonly [number, number] {
  const length = high - low;
  const start = Math.min(Math.max(0, low + share * length), Math.max(0, maximum - length));
  return [start, start + length];
}

/** Scales the view about a center, given in shares of width and height. Factors below 1 show less. */
export function zoom(
  view: Viewport,
  extent: Extent,
  {
    time = 1,
    ranks = 1,
    center,
  }: { readonly time?: number; readonly ranks?: number; readonly center: readonly [number, number] },
): Viewport {
  const [start, end] = scaleRange([view.start, view.end], time, {
    at: center[0],
    minLength: MIN_VIEW_SECONDS,
    maximum: extent.seconds,
  });
  const [first, last] = scaleRange([view.first, view.last], ranks, {
    at: center[1],
    minLength: 1,
    maximum: extent.ranks,
  });
  return { start, end, first, last };
}

function scaleRange(
  [low, high]: readonly [number, number],
  factor: number,
  { at, minLength, maximum }: { readonly at: number; readonly minLength: number; readonly maximum: number },
): readonly [number, number] {
  const length = Math.min(maximum, Math.max(Math.min(minLength, maximum), (high - low) * factor));
  const start = Math.min(Math.max(0, low + at * (high - low - length)), maximum - length);
  return [start, start + length];
}

/** Moves the view only as far as needed to show an event, or a rank. */
export function reveal(
  view: Viewport,
  extent: Extent,
  { start, end, rank }: { start: number; end: number; rank: number },
): Viewport {
  const length = view.end - view.start;
  const isTimeShown = start >= view.start && start <= view.end - Math.min(end - start, length);
  const xShift = isTimeShown ? 0 : ((start + end) / 2 - (view.start + view.end) / 2) / length;
  const height = view.last - view.first;
  const yShift =
    rank < view.first ? (rank - view.first) / height : rank + 1 > view.last ? (rank + 1 - view.last) / height : 0;
  return pan(view, extent, [xShift, yShift]);
}

/** A row of the picture: one rank of one run, or several ranks if there are more ranks than rows. */
export interface Row {
  readonly run: number;
  /** Indices of ranks. */
  readonly firstRank: number;
  readonly endRank: number;
  readonly top: number;
  readonly height: number;
}

/** Returns rows of at least `minHeight` pixels that fill a height. The runs of a rank are one below the other. */
export function layoutRows(
  view: Viewport,
  runs: number,
  { height, minHeight }: { height: number; minHeight: number },
): readonly Row[] {
  const rowsPerRank = height / (view.last - view.first);
  const ranksPerRow = Math.max(1, Math.ceil((minHeight * runs) / rowsPerRank));
  const rows: Row[] = [];
  const first = Math.floor(view.first / ranksPerRow) * ranksPerRow;
  for (let firstRank = first; firstRank < view.last; firstRank += ranksPerRow) {
    const top = (firstRank - view.first) * rowsPerRank;
    const bottom = (firstRank + ranksPerRow - view.first) * rowsPerRank;
    for (let run = 0; run < runs; run++) {
      const [y0, y1] = [run, run + 1].map((i) => Math.round(top + ((bottom - top) * i) / runs)) as [number, number];
      const [clippedTop, clippedBottom] = [Math.max(0, y0), Math.min(height, y1)];
      if (clippedBottom <= clippedTop) continue;
      rows.push({
        run,
        firstRank,
        endRank: firstRank + ranksPerRow,
        top: clippedTop,
        height: clippedBottom - clippedTop,
      });
    }
  }
  return rows;
}
