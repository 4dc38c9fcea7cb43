import {
  type AttentionBackend,
  type Call,
  type Coordinate,
  isVisible,
  type Layout,
  omitAxes,
  spansLength,
} from "@mosaic/core";
import type { Split } from "./exchange.ts";
import { type HeadCounts, sharesOf } from "./heads.ts";

/** The call as every rank along the axis knows it. */
export type TeamCall = Pick<Call, "at" | "mask" | "queries" | "keys">;

/** A backend's own part of what teams are worked out from. */
export interface TeamAxis {
  readonly axis: string;
  readonly size: number;
  readonly inner: AttentionBackend;
}

/** The ranks along an axis, which hold the rows of one stretch of queries and one of keys between them. */
export interface Team {
  readonly queries: Split;
  readonly keys: Split;
  /** Whether any of them, or of those that the inner backend gathers keys from or for, sees anything. */
  readonly sees: boolean;
}

/** Every rank works it out alone, from the layouts: nothing is sent for it. `from` is where the keys come from. */
export function teamOf(team: TeamAxis, call: TeamCall, { from, ...counts }: HeadCounts & { from: Coordinate }): Team {
  const { axis, size, inner } = team;
  const shares = sharesOf(counts, size);
  const gathered = [axis, ...inner.axes];
  const rows = (layout: Layout, at: Coordinate) =>
    shares.map((_, rank) => spansLength(layout.spans({ ...at, [axis]: rank })));
  return {
    queries: { rows: rows(call.queries, call.at), heads: shares.map(({ queries }) => queries) },
    keys: { rows: rows(call.keys, from), heads: shares.map(({ keys }) => keys) },
    sees: isVisible(
      call.queries.spans(omitAxes(call.at, gathered)),
      call.keys.spans(omitAxes(from, gathered)),
      call.mask,
    ),
  };
}
