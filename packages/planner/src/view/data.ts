import type { Coordinate } from "@mosaic/core";

// Data of a viewer's page, as JSON. Written by `viewerHtml`, and by ranks that trace themselves; read by the page.

/** Events with the same lane, name and label. */
export interface EventKind {
  readonly lane: "compute" | "communication";
  readonly name: string;
  readonly label?: string;
}

/** Events of one rank by columns, in order of their starts. Times are in nanoseconds. */
export interface EventColumns {
  readonly kinds: readonly EventKind[];
  /** Index into `kinds`. */
  readonly kind: readonly number[];
  /** Start of the first event, then the difference of each start from the one before it. */
  readonly start: readonly number[];
  readonly duration: readonly number[];
  /** For each communication event, in order: bytes sent, bytes received. */
  readonly bytes: readonly number[];
  /**
   * For runs of merged events: their number, and the share of the run's time that they take, in thousandths. Absent if
   * nothing was merged.
   */
  readonly merged?: { readonly count: readonly number[]; readonly share: readonly number[] };
}

/** Bytes that a rank had allocated from each time on. Times are encoded as in `EventColumns.start`. */
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
  /** Seconds spent computing and waiting for transfers. Absent if they are to be computed from the events. */
  readonly spent?: { readonly computing: number; readonly waiting: number };
}

/** The file of a rank that traced itself. Times are those of its own host's clock. */
export interface RankTraceData extends RankData {
  readonly format: typeof traceFormat;
  readonly worldSize: number;
  /** Number of its host. */
  readonly host: number;
  /** Offset to add to its times to obtain those of rank 0, and the maximum error of this offset. */
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
  /** Number of events before runs of them were merged. */
  readonly events: number;
  readonly ranks: readonly RankData[];
}

/** A range of the sequence: a row or a column of the tile map. */
export interface Band {
  readonly start: number;
  /** The last position. */
  readonly last: number;
  /** Number of positions; fewer than from start to last if it is strided. */
  readonly length: number;
}

/** The rank that computes each tile of the forward, and at which of its steps. */
export interface TileData {
  readonly queries: readonly Band[];
  readonly keys: readonly Band[];
  readonly steps: number;
  /**
   * Ranks that share the heads of a tile are in different layers. Each layer has, row by row, runs of cells: number of
   * cells, rank (−1 for none), step of the first cell, and change of the step from each cell to the next.
   */
  readonly layers: readonly (readonly number[])[];
}

/** Bytes between ranks, by direction, forward and backward together. */
export interface LinkData {
  /** The node of each rank. */
  readonly nodes: readonly number[];
  /** Meaning of `from` and `to`: ranks or, if there are too many pairs of them, nodes. */
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

/** All data of a page. */
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
