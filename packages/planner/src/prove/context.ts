import type { AttentionRecord } from "../record.ts";
import { type PositionList, PositionTable } from "./positions.ts";
import { Relabeling } from "./relabeling.ts";
import { SumTable, TileTable } from "./sums.ts";
import { type RowSide, InitialValues } from "./values.ts";
import { Visibility } from "./visibility.ts";

/** What is wrong with a record, and where. */
export interface Violation {
  /**
   * - duplicate, missing: pairs of queries and keys that count more than once, or never
   * - data: a kernel or a result has other rows than it should
   * - race: compute touches what a collective that was not waited for reads or writes, or one writes where it also reads
   * - message: a send without a receive, or with one of another size; collectives that do not fit
   * - cycle: ranks that wait for each other
   * - class: of a record of classes, a rank that does other than the representative of its class
   */
  readonly kind: "duplicate" | "missing" | "data" | "race" | "message" | "cycle" | "class";
  readonly rank: number;
  /** A sentence that names the place: rank, phase, tile or message. */
  readonly message: string;
}

/** One mistake shows in many places: the first ones are kept, the rest counted. */
export class Violations {
  readonly reportedViolations: Violation[] = [];
  readonly #maxReported: number;
  /** For how many ranks what is reported stands. */
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
    // Of ranks that wait for each other one circle is named, however many there are.
    this.#numViolations += violation.kind === "cycle" ? 1 : this.#numRanks;
    if (this.reportedViolations.length < this.#maxReported) this.reportedViolations.push(violation);
  }
}

/** What the ranks of a proof share. */
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

/** A sum over the other side of some rows: what a verdict is about. */
export interface CoverageQuery {
  readonly tiles: readonly number[];
  readonly side: RowSide;
  readonly rows: PositionList;
}

/** What is wrong with a sum; undefined if every visible pair of its rows is in it once. */
export type Verdict = Pick<Violation, "kind" | "message"> | undefined;

/** Decides whether sums are complete. */
export interface Completeness {
  evaluateSum(sum: number, side: RowSide, rows: PositionList): Verdict;
  /** Whether any of these queries sees any of these keys. */
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
