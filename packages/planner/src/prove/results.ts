import type { RecordedRank } from "../record.ts";
import type { ContentEntry } from "./content.ts";
import { shiftExpectedRows, hasExpectedRows, decodeSum } from "./entries.ts";
import type { ReplayContext, Verdict } from "./context.ts";
import type { RankMemory } from "./rank-memory.ts";
import { evaluateSinks } from "./sinks.ts";
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
 * Checks the final memory of a rank: out, dq, dk and dv of its own rows must contain all their visible pairs once, and
 * the inputs, which belong to the caller, must be unchanged.
 */
export function checkResults(context: ReplayContext, recordedRank: RecordedRank, memory: RankMemory): void {
  const { record, positions, violations } = context;
  const { tape, at, firstSequence, tensorViews } = recordedRank;
  for (const name of ["out", "dq", "dk", "dv"] as const) {
    const ownPositions = positions.fromSpans(record[resultSides[name]].spans(at));
    if (ownPositions.length === 0) continue;
    const expected = { batch: firstSequence, head: 0, column: 0, positions: ownPositions };
    const { entries, isComplete } = memory.read(tensorViews[name]);
    let violation: Verdict = isComplete ? undefined : { kind: "data", message: "the tensor is not fully initialized" };
    for (const entry of entries) violation ??= evaluateResult(entry, { name, expected, context });
    if (violation)
      violations.report({ ...violation, rank: tape.rank, message: `rank ${tape.rank}, ${name}: ${violation.message}` });
  }
  for (const name of ["q", "k", "v", "dOut"] as const) {
    const ownPositions = positions.fromSpans(record[sourceSides[name]].spans(at));
    if (ownPositions.length === 0) continue;
    const expected = { batch: firstSequence, head: 0, column: 0, positions: ownPositions };
    const { entries, isComplete: isInitialized } = memory.read(tensorViews[name]);
    if (
      isInitialized &&
      entries.every((entry) => entry.value === encodeValue(name) && hasExpectedRows(entry, expected))
    )
      continue;
    const message = `rank ${tape.rank}, ${name}: an input of the caller was overwritten`;
    violations.report({ kind: "data", rank: tape.rank, message });
  }
}

interface ExpectedResult {
  readonly name: keyof typeof resultSides;
  readonly expected: Rows;
  readonly context: ReplayContext;
}

function evaluateResult(entry: ContentEntry, { name, expected, context }: ExpectedResult): Verdict {
  const { initialValues, completeness, record } = context;
  const sum = decodeSum(entry.value, name, initialValues);
  if (sum === undefined) return { kind: "data", message: `holds ${describeValue(entry.value, record.interned)}` };
  const rows = isFill(entry.value) ? shiftExpectedRows(entry, expected) : entry.rows;
  if (isFill(entry.value) || hasExpectedRows(entry, expected)) {
    const verdict = completeness.evaluateSum(sum, resultSides[name], rows.positions);
    return verdict ?? (name === "out" ? evaluateSinks(context, sum) : undefined);
  }
  const [actualText, expectedText] = [entry.rows, shiftExpectedRows(entry, expected)].map(({ positions }) =>
    formatPositions(positions.spans),
  );
  return { kind: "data", message: `expected rows ${expectedText}, received rows ${actualText}` };
}
