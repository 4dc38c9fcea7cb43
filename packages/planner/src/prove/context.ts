import type { AttentionRecord } from "../record.ts";
import { type PositionList, PositionTable } from "./positions.ts";
import { Relabeling } from "./relabeling.ts";
import { SumTable, TileTable } from "./sums.ts";
import { type RowSide, InitialValues } from "./values.ts";
import { Visibility } from "./visibility.ts";

/** An error in a record, and its location. */
export interface Violation {
  /**
   * - duplicate, missing: pairs of queries and keys that are counted more than once, or never
   * - data: an operand of a kernel or a result has other rows than it should
   * - race: compute touches memory that a pending collective reads or writes, or a collective writes where it also
   *   reads
   * - message: a send without a receive, or with a receive of another size; collectives that do not match
   * - cycle: ranks that wait for each other
   * - class: in a record of classes, a rank that does something else than the representative of its class
   */
  readonly kind: "duplicate" | "missing" | "data" | "race" | "message" | "cycle" | "class";
  readonly rank: number;
  /** A sentence with the location: rank, phase, tile or message. */
  readonly message: string;
}

/** Collects violations. One mistake causes many, so the first ones are kept and the rest are counted. */
export class Violations {
  readonly reportedViolations: Violation[] = [];
  readonly #maxReported: number;
  /** Number of ranks that a reported violation represents. */
  readonly #numRanks: number;
  #numViolations = 0;

  constructor(limit: number, ranks: number = 1) {
    this.#maxReported = limit;
    this.#numRanks = ranks;
  }

  get total(): number {
    return this.#numViolations;
  }

  report(violation: Violation): void {
    // A cycle of waiting ranks is reported once, however many ranks are represented.
    this.#numViolations += violation.kind === "cycle" ? 1 : this.#numRanks;
    if (this.reportedViolations.length < this.#maxReported) this.reportedViolations.push(violation);
  }
}

/** Data that the ranks of a proof share. */
export interface VerifierContext {
  readonly record: AttentionRecord;
  readonly positions: PositionTable;
  readonly visibility: Visibility;
  readonly tiles: TileTable;
  readonly sums: SumTable;
  readonly initialValues: InitialValues;
  readonly relabeling: Relabeling;
}

/** A context in which tapes are replayed. */
export interface ReplayContext extends VerifierContext {
  readonly completeness: Completeness;
  readonly violations: Violations;
}

/** A sum of tiles for some rows, over all positions of the other side. A verdict is about such a sum. */
export interface CoverageQuery {
  readonly tiles: readonly number[];
  readonly side: RowSide;
  readonly rows: PositionList;
}

/** The violation in a sum; undefined if it contains every visible pair of its rows once. */
export type Verdict = Pick<Violation, "kind" | "message"> | undefined;

/** Decides whether sums are complete. */
export interface Completeness {
  evaluateSum(sum: number, side: RowSide, rows: PositionList): Verdict;
  /** Whether any of these queries attends to any of these keys. */
  isVisible(queries: PositionList, keys: PositionList, mask: number): boolean;
}

export function createVerifierContext(record: AttentionRecord): VerifierContext {
  const { interned, classes } = record;
  const positions = new PositionTable(interned);
  const sums = new SumTable(classes);
  return {
    record,
    positions,
    sums,
    tiles: new TileTable(positions, interned),
    visibility: new Visibility(interned),
    initialValues: new InitialValues(interned),
    relabeling: new Relabeling(record, positions, sums),
  };
}
