import type { Coordinate } from "@mosaic/core";

// What a page of the viewer holds, as JSON: written by `viewerHtml`, and by ranks that trace themselves; read by the page.

/** A group of like events. */
export interface EventKind {
  readonly lane: "compute" | "communication";
  readonly name: string;
  readonly label?: string;
}

/** Events of one rank by columns, in order of their starts. Times are nanoseconds. */
export interface EventColumns {
  readonly kinds: readonly EventKind[];
  /** Index into `kinds`. */
  readonly kind: readonly number[];
  /** Of the first event its start, of each other the difference from the start before it. */
  readonly start: readonly number[];
  readonly duration: readonly number[];
  /** Of each communication event, in order: bytes sent, bytes received. */
  readonly bytes: readonly number[];
  /** Of runs of merged events: how many, and the share of the run's time in thousandths. Absent: nothing was merged. */
  readonly merged?: { readonly count: readonly number[]; readonly share: readonly number[] };
}

/** Bytes that a rank had allocated, from each moment on; times as those of `EventColumns.start`. */
export interface MemoryColumns {
  readonly time: readonly number[];
  readonly bytes: readonly number[];
}

/** One rank of a run. */
export interface RankData {
  readonly rank: number;
  readonly at: Coordinate;
  readonly events: EventColumns;
  readonly memory?: MemoryColumns;
  /** Seconds that it computed, and waited for transfers. Absent: to be counted from the events. */
  readonly spent?: { readonly computing: number; readonly waiting: number };
}

/** A rank that traced itself, as it lies in a file. Times are of its own host's clock. */
export interface RankTraceData extends RankData {
  readonly format: typeof traceFormat;
  readonly worldSize: number;
  /** Number of its host. */
  readonly host: number;
  /** What is to be added to its times to have those of rank 0, and how far that may be off. */
  readonly clock: { readonly offset: number; readonly error: number };
  /** Why the trace ended before the program, if it did. */
  readonly note?: string;
}

export const traceFormat = "mosaic-trace/1";

/** One timeline of a page. */
export interface RunData {
  /** "predicted", "measured", or "" for the only one. */
  readonly name: string;
  readonly seconds: number;
  readonly clockError?: number;
  /** How many events there were before runs of them were merged. */
  readonly events: number;
  readonly ranks: readonly RankData[];
}

/** A stretch of the sequence: a row or a column of the tile map. */
export interface Band {
  readonly start: number;
  /** The last position. */
  readonly last: number;
  /** Positions that it has; fewer than from start to last where it is strided. */
  readonly length: number;
}

/** Which rank computes which tile at which of its steps, forward. */
export interface TileData {
  readonly queries: readonly Band[];
  readonly keys: readonly Band[];
  readonly steps: number;
  /**
   * Ranks that share the heads of a tile are in layers. Each layer has, row by row, runs of cells: how many, the rank (−1: none), the step of
   * the first of them, and how the step changes from each to the next.
   */
  readonly layers: readonly (readonly number[])[];
}

/** Bytes between ranks, by direction, forward and backward. */
export interface LinkData {
  /** The node of each rank. */
  readonly nodes: readonly number[];
  /** What `from` and `to` number: ranks, or, where there are too many pairs of them, nodes. */
  readonly between: "ranks" | "nodes";
  readonly links: readonly { readonly from: number; readonly to: number; readonly bytes: number }[];
}

/** Visible (query, key) pairs by rank. */
export interface LoadData {
  readonly mask: string;
  readonly placement: string;
  readonly ranks: readonly number[];
  readonly pairs: readonly number[];
}

/** All that a page shows. */
export interface ViewerData {
  readonly format: "mosaic-viewer/1";
  readonly title: string;
  readonly subtitle: string;
  readonly facts: readonly string[];
  readonly runs: readonly RunData[];
  readonly tiles?: TileData;
  readonly links?: LinkData;
  readonly load?: LoadData;
}
