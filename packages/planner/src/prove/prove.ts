import { checkOptionNames } from "@mosaic/core";
import type { AttentionRecord, RecordedRank } from "../record.ts";
import { Completeness } from "./complete.ts";
import { type Fault, Faults } from "./fault.ts";
import { PositionsTable } from "./positions.ts";
import { RankMemory } from "./rank-memory.ts";
import { Replay } from "./replay.ts";
import { checkResults } from "./results.ts";
import { Streams } from "./streams.ts";
import { findDeadlock } from "./deadlock.ts";
import { Sums, Tiles } from "./sums.ts";
import { type Rows, type Side, valueOf, Zeros } from "./values.ts";
import { Visibility } from "./visibility.ts";

export interface ProveOptions {
  /** How many faults are kept, 10 if absent; all are counted. */
  readonly limit?: number;
}

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
 * - compute, and whoever gets the results, touches nothing that a collective under way uses, and no collective writes where
 *   it also reads;
 * - inputs, which are the caller's, end as they were.
 *
 * Rows are followed as boxes; a kernel that attention does not use leaves its output unknown, and unknown rows are refused
 * where attention uses them.
 */
export function prove(record: AttentionRecord, options: ProveOptions = {}): Proof {
  checkOptionNames("prove", options, ["limit"]);
  const { limit = 10 } = options;
  const { names } = record;
  const faults = new Faults(limit);
  const positions = new PositionsTable(names);
  const tiles = new Tiles(positions, names);
  const context = { record, positions, tiles, sums: new Sums(), visibility: new Visibility(names) };
  const means = { ...context, zeros: new Zeros(names), complete: new Completeness(context), faults };
  const memories = record.ranks.map((recorded) => given(record, recorded, positions));
  const streams = new Streams(record, { ...means, memories });
  const replays = record.ranks.map((recorded, rank) => {
    return new Replay(means, recorded, { memory: memories[rank]!, streams });
  });
  for (const { rank } of replays.toReversed()) streams.free(rank); // what is free last goes on first
  for (let rank = streams.takeFree(); rank !== undefined; rank = streams.takeFree()) replays[rank]!.run();
  for (const fault of findDeadlock(record, streams)) faults.report(fault);
  for (const [rank, recorded] of record.ranks.entries()) {
    if (replays[rank]!.ended) checkResults(means, recorded, memories[rank]!);
  }
  const peakBytes = record.ranks.map(({ peakBytes: peak }) => peak);
  return { faults: faults.list, total: faults.total, peakBytes };
}

/** A rank's memory with its inputs in it. */
function given(record: AttentionRecord, recorded: RecordedRank, table: PositionsTable): RankMemory {
  const { tape, at, firstSequence, ends } = recorded;
  const memory = new RankMemory(tape);
  const rowsOf = (side: Side): Rows => {
    return { batch: firstSequence, head: 0, column: 0, positions: table.of(record[side].spans(at)) };
  };
  // One object for the rows of queries and one for those of keys: what belongs together is quickly seen to.
  const [queries, keys] = [rowsOf("queries"), rowsOf("keys")];
  for (const name of ["q", "dOut"] as const) memory.put(ends[name], valueOf(name), queries);
  for (const name of ["k", "v"] as const) memory.put(ends[name], valueOf(name), keys);
  return memory;
}
