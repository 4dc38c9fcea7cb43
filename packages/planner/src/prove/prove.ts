import type { AttentionRecord } from "../record.ts";
import { Completeness } from "./complete.ts";
import { type Fault, Faults } from "./fault.ts";
import { RankMemory } from "./rank-memory.ts";
import { Replay } from "./replay.ts";
import { checkResults } from "./results.ts";
import { Streams } from "./streams.ts";
import { whyStuck } from "./stuck.ts";

/** What was found of a record. */
export interface Proof {
  /** None: the record is right. Else the first ones found. */
  readonly faults: readonly Fault[];
  /** How many there are, kept or not. */
  readonly total: number;
  /** The most bytes allocated at once, by rank. */
  readonly peakBytes: readonly number[];
}

/**
 * Replays a record and checks that
 *
 * - every visible pair of a query and a key is attended once, and is once in dq, dk and dv, for every sequence and head:
 *   memory is followed through copies, messages and sums, so that stale, foreign or scrambled rows are found where used;
 * - every send meets a receive of as many bytes, in order, between the same ranks of the same group;
 * - no ranks wait for each other in a circle, on an engine where a message moves only when both sides have their turn;
 * - compute touches nothing that a collective under way uses.
 *
 * Rows are followed as boxes; a kernel that attention does not use leaves its output unknown, and unknown rows are refused
 * where attention uses them. `limit`: how many faults are kept, 10 if absent.
 */
export function prove(record: AttentionRecord, { limit = 10 }: { readonly limit?: number } = {}): Proof {
  const faults = new Faults(limit);
  const complete = new Completeness(record);
  const memories = record.ranks.map((recorded) => given(record, recorded));
  const streams = new Streams(record, memories, faults);
  const replays = record.ranks.map((recorded, rank) => {
    return new Replay(record, recorded, { memory: memories[rank]!, complete, faults, streams });
  });
  for (const replay of replays) replay.run();
  for (let rank = streams.freed.pop(); rank !== undefined; rank = streams.freed.pop()) replays[rank]!.run();
  for (const fault of whyStuck(record, streams)) faults.report(fault);
  for (const [rank, recorded] of record.ranks.entries()) {
    if (replays[rank]!.ended) checkResults(record, recorded, { memory: memories[rank]!, complete, faults });
  }
  const peakBytes = record.ranks.map(({ peakBytes: peak }) => peak);
  return { faults: faults.list, total: faults.total, peakBytes };
}

/** A rank's memory with its inputs in it. */
function given(
  record: AttentionRecord,
  { tape, at, firstSequence, ends }: AttentionRecord["ranks"][number],
): RankMemory {
  const memory = new RankMemory(tape);
  for (const name of ["q", "dOut", "k", "v"] as const) {
    const spans = (name === "q" || name === "dOut" ? record.queries : record.keys).spans(at);
    const { sizes } = memory.view(ends[name]).look.box;
    let first = 0;
    const entries = spans.map(({ start, length, step }) => {
      const rows = { batch: firstSequence, head: 0, start, step };
      const entry = {
        value: { kind: "source", name } as const,
        rows,
        at: [0, 0, first, 0],
        sizes: sizes.with(2, length),
      };
      first += length;
      return entry;
    });
    memory.write(ends[name], entries);
  }
  return memory;
}
