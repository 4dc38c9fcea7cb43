import type { RecordedRank } from "../record.ts";
import type { ContentEntry } from "./content.ts";
import { shiftExpectedRows, hasRows, sumNumber } from "./entries.ts";
import type { ReplayContext, Verdict } from "./context.ts";
import type { RankMemory } from "./rank-memory.ts";
import { sinkVerdict } from "./sinks.ts";
import {
  describeValue,
  isFill,
  formatPositions,
  type Rows,
  type RowSide,
  type SourceName,
  type SumName,
  encodeValue,
} from "./values.ts";

const resultSides = { out: "queries", dq: "queries", dk: "keys", dv: "keys" } as const satisfies Partial<
  Record<SumName, RowSide>
>;

const sourceSides = { q: "queries", k: "keys", v: "keys", dOut: "queries" } as const satisfies Record<
  SourceName,
  RowSide
>;

/**
 * Whether a rank ends with what it should: out, dq, dk and dv of its own rows, each of all their visible pairs, once; and
 * its inputs, which are the caller's, as they were.
 */
export function checkResults(context: ReplayContext, recorded: RecordedRank, memory: RankMemory): void {
  const { record, positions, violations } = context;
  const { tape, at, firstSequence, tensorViews } = recorded;
  for (const name of ["out", "dq", "dk", "dv"] as const) {
    const own = positions.fromSpans(record[resultSides[name]].spans(at));
    if (own.length === 0) continue;
    const expected = { batch: firstSequence, head: 0, column: 0, positions: own };
    const { entries, isComplete } = memory.read(tensorViews[name]);
    let problem: Verdict = isComplete ? undefined : { kind: "data", message: "the tensor is not fully initialized" };
    for (const entry of entries) problem ??= resultVerdict(entry, { name, expected, context });
    if (problem)
      violations.report({ ...problem, rank: tape.rank, message: `rank ${tape.rank}, ${name}: ${problem.message}` });
  }
  for (const name of ["q", "k", "v", "dOut"] as const) {
    const own = positions.fromSpans(record[sourceSides[name]].spans(at));
    if (own.length === 0) continue;
    const expected = { batch: firstSequence, head: 0, column: 0, positions: own };
    const { entries, isComplete: whole } = memory.read(tensorViews[name]);
    if (whole && entries.every((entry) => entry.value === encodeValue(name) && hasRows(entry, expected))) continue;
    const message = `rank ${tape.rank}, ${name}: an input of the caller was overwritten`;
    violations.report({ kind: "data", rank: tape.rank, message });
  }
}

interface ExpectedResult {
  readonly name: keyof typeof resultSides;
  readonly expected: Rows;
  readonly context: ReplayContext;
}

function resultVerdict(entry: ContentEntry, { name, expected, context }: ExpectedResult): Verdict {
  const { initialValues, completeness, record } = context;
  const sum = sumNumber(entry.value, name, initialValues);
  if (sum === undefined) return { kind: "data", message: `holds ${describeValue(entry.value, record.interned)}` };
  const rows = isFill(entry.value) ? shiftExpectedRows(entry, expected) : entry.rows;
  if (isFill(entry.value) || hasRows(entry, expected)) {
    const verdict = completeness.verdictOf(sum, resultSides[name], rows.positions);
    return verdict ?? (name === "out" ? sinkVerdict(context, sum) : undefined);
  }
  const [held, due] = [entry.rows, shiftExpectedRows(entry, expected)].map(({ positions }) =>
    formatPositions(positions.spans),
  );
  return { kind: "data", message: `expected rows ${due}, received rows ${held}` };
}
