import { type Span, spansLength } from "@mosaic/core";
import type { AttentionRecord, RecordedRank } from "../record.ts";
import { cutRows, type Expected, fits, isZero, nothing } from "./accumulate.ts";
import type { Means } from "./compute.ts";
import type { Entry } from "./content.ts";
import type { Fault } from "./fault.ts";
import { describe, positionsText, type Side, type Sum, type SumName } from "./values.ts";

const sides = { out: "queries", dq: "queries", dk: "keys", dv: "keys" } as const satisfies Partial<
  Record<SumName, Side>
>;

/** Whether a rank ends with what it should: out, dq, dk and dv of its own rows, each of all their visible pairs, once. */
export function checkResults(
  record: AttentionRecord,
  recorded: RecordedRank,
  { memory, complete, faults }: Means,
): void {
  const { tape, at, firstSequence, ends } = recorded;
  for (const name of ["out", "dq", "dk", "dv"] as const) {
    const side = sides[name];
    const expected: Expected = { spans: record[side].spans(at), batch: firstSequence, head: 0 };
    if (spansLength(expected.spans) === 0) continue;
    const problem = problemOf(name);
    if (problem)
      faults.report({ ...problem, rank: tape.rank, message: `rank ${tape.rank}, ${name}: ${problem.message}` });

    function problemOf(sum: SumName): Pick<Fault, "kind" | "message"> | undefined {
      const read = memory.read(ends[name]);
      if (!read.whole) return { kind: "data", message: "not all of it is known" };
      for (const entry of read.entries) {
        const held = sumOf(entry, sum, expected);
        if (typeof held === "string") return { kind: "data", message: held };
        for (const rows of held.rows) {
          const verdict = complete.of(held.sum, side, rows);
          if (verdict) return verdict;
        }
      }
      return undefined;
    }
  }
}

function sumOf(entry: Entry, name: SumName, expected: Expected): { sum: Sum; rows: Span[] } | string {
  const { value } = entry;
  const spanOf = ({ rows, sizes }: Entry): Span => ({ start: rows.start, length: sizes[2]!, step: rows.step });
  if (isZero(value, name)) return { sum: nothing, rows: cutRows(entry, expected).map(spanOf) };
  if (value.kind !== "sum" || value.name !== name) return `holds ${describe(value)}`;
  if (!fits(entry, expected)) return `holds ${positionsText([spanOf(entry)])} in the place of other rows`;
  return { sum: value.sum, rows: [spanOf(entry)] };
}
