import type { Coordinate } from "@mosaic/core";

/** One piece of work of one rank, predicted or measured. Times are seconds since the run began. */
export interface Piece {
  readonly lane: "compute" | "communication";
  /** The kernel's or collective's name, e.g. "attend" or "sendRecv". */
  readonly name: string;
  readonly start: number;
  readonly end: number;
  /** Communication only: the caller's label, e.g. "ring(sp)", and the payload in bytes. */
  readonly label?: string;
  readonly bytesSent?: number;
  readonly bytesReceived?: number;
}

/** What the ranks did when. A predicted one and a measured one have the same form, so that they can be drawn side by side. */
export interface Timeline {
  /** When the last rank ended. */
  readonly seconds: number;
  readonly ranks: readonly { readonly rank: number; readonly at: Coordinate; readonly pieces: readonly Piece[] }[];
}
