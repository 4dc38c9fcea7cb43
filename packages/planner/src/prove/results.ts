import type { RecordedRank } from "../record.ts";
import type { Entry } from "./content.ts";
import { expectedAt, fits, sumIn } from "./entries.ts";
import type { ReplayContext, Verdict } from "./context.ts";
import type { RankMemory } from "./rank-memory.ts";
import {
  describe,
  isFill,
  positionsText,
  type Rows,
  type Side,
  type SourceName,
  type SumName,
  valueOf,
} from "./values.ts";

const sides = { out: "queries", dq: "queries", dk: "keys", dv: "keys" } as const satisfies Partial<
  Record<SumName, Side>
>;

const inputs = { q: "queries", k: "keys", v: "keys", dOut: "queries" } as const satisfies Record<SourceName, Side>;

/**
 * Whether a rank ends with what it should: out, dq, dk and dv of its own rows, each of all their visible pairs, once; and
 * its inputs, which are the caller's, as they were.
 */
export function checkResults(context: ReplayContext, recorded: RecordedRank, memory: RankMemory): void {
  const { record, positions, faults } = context;
  const { tape, at, firstSequence, ends } = recorded;
  for (const name of ["out", "dq", "dk", "dv"] as const) {
    const own = positions.of(record[sides[name]].spans(at));
    if (own.length === 0) continue;
    const expected = { batch: firstSequence, head: 0, column: 0, positions: own };
    const { entries, whole } = memory.read(ends[name]);
    let problem: Verdict = whole ? undefined : { kind: "data", message: "not all of it is known" };
    for (const entry of entries) problem ??= problemOf(entry, { name, expected, context });
    if (problem)
      faults.report({ ...problem, rank: tape.rank, message: `rank ${tape.rank}, ${name}: ${problem.message}` });
  }
  for (const name of ["q", "k", "v", "dOut"] as const) {
    const own = positions.of(record[inputs[name]].spans(at));
    if (own.length === 0) continue;
    const expected = { batch: firstSequence, head: 0, column: 0, positions: own };
    const { entries, whole } = memory.read(ends[name]);
    if (whole && entries.every((entry) => entry.value === valueOf(name) && fits(entry, expected))) continue;
    const message = `rank ${tape.rank}, ${name}: what the caller passed was overwritten`;
    faults.report({ kind: "data", rank: tape.rank, message });
  }
}

interface Wanted {
  readonly name: keyof typeof sides;
  readonly expected: Rows;
  readonly context: ReplayContext;
}

function problemOf(entry: Entry, { name, expected, context }: Wanted): Verdict {
  const { zeros, complete, record } = context;
  const sum = sumIn(entry.value, name, zeros);
  if (sum === undefined) return { kind: "data", message: `holds ${describe(entry.value, record.names)}` };
  const rows = isFill(entry.value) ? expectedAt(entry, expected) : entry.rows;
  if (isFill(entry.value) || fits(entry, expected)) return complete.of(sum, sides[name], rows.positions);
  const held = positionsText(entry.rows.positions.spans);
  return { kind: "data", message: `holds ${held} in the place of other rows` };
}
