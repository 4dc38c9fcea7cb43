import type { AttentionRecord } from "../record.ts";
import type { Positions, PositionsTable } from "./positions.ts";
import type { Sums, Tiles } from "./sums.ts";
import type { Side } from "./values.ts";
import type { Visibility } from "./visibility.ts";

/** What sums are judged by. */
export interface VerifierContext {
  readonly record: AttentionRecord;
  readonly positions: PositionsTable;
  readonly visibility: Visibility;
  readonly tiles: Tiles;
  readonly sums: Sums;
}

/** A sum over the other side of some rows: what is judged. */
export interface Query {
  readonly tiles: readonly number[];
  readonly side: Side;
  readonly rows: Positions;
}
