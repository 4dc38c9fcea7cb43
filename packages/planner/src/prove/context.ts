import type { AttentionRecord } from "../record.ts";
import type { Fault, Faults } from "./fault.ts";
import { type Positions, PositionsTable } from "./positions.ts";
import { Relabelling } from "./relabelling.ts";
import { Sums, Tiles } from "./sums.ts";
import { type Side, Zeros } from "./values.ts";
import { Visibility } from "./visibility.ts";

/** What the ranks of a proof share. */
export interface VerifierContext {
  readonly record: AttentionRecord;
  readonly positions: PositionsTable;
  readonly visibility: Visibility;
  readonly tiles: Tiles;
  readonly sums: Sums;
  readonly zeros: Zeros;
  readonly relabelling: Relabelling;
}

/** A context in which tapes are replayed. */
export interface ReplayContext extends VerifierContext {
  readonly complete: Completeness;
  readonly faults: Faults;
}

/** A sum over the other side of some rows: what is judged. */
export interface Query {
  readonly tiles: readonly number[];
  readonly side: Side;
  readonly rows: Positions;
}

/** What is wrong with a sum; undefined if every visible pair of its rows is in it once. */
export type Verdict = Pick<Fault, "kind" | "message"> | undefined;

/** Decides whether sums are complete. */
export interface Completeness {
  of(sum: number, side: Side, rows: Positions): Verdict;
  /** Whether any of these queries sees any of these keys. */
  sees(queries: Positions, keys: Positions, mask: number): boolean;
}

export function verifierContext(record: AttentionRecord): VerifierContext {
  const { names, classes } = record;
  const positions = new PositionsTable(names);
  const sums = new Sums(classes);
  return {
    record,
    positions,
    sums,
    tiles: new Tiles(positions, names),
    visibility: new Visibility(names),
    zeros: new Zeros(names),
    relabelling: new Relabelling(record, positions, sums),
  };
}
