import { defineOptions, option, type OptionsOf } from "@mosaic/core";
import { Quotient } from "../symmetry/quotient.ts";
import { sampledRanks } from "../symmetry/translations.ts";
import { type AttentionRecord, checkRecord, maxRecordedRanks, record } from "../record.ts";
import { SumCompleteness } from "./completeness.ts";
import { type Completeness, type Violation, Violations, type VerifierContext, verifierContext } from "./context.ts";
import { Coverage } from "./coverage.ts";
import { findDeadlock } from "./deadlock.ts";
import { MessageLog } from "./message-log.ts";
import { checkRank } from "./rank-check.ts";
import { initialMemory, Replay } from "./replay.ts";
import { checkResults } from "./results.ts";
import { ReplayStreams } from "./streams.ts";

export const proveOptions = defineOptions("prove", {
  /** How many violations are kept; all are counted. Default 10. */
  limit: option.integer({ min: 0, default: 10 }),
});
/** How much a proof reports. */
export type ProveOptions = OptionsOf<typeof proveOptions>;

/** What was found of a record. */
export interface Proof {
  /** None: the record is right. Else the first ones found. */
  readonly violations: readonly Violation[];
  /** How many there are, kept or not. */
  readonly total: number;
  /** The most bytes allocated at once, by rank. */
  readonly peakBytes: readonly number[];
  /** How many ranks were replayed: all, or of a large record of classes the representatives and some others. */
  readonly replayed: number;
}

/**
 * Replays a record and checks that
 *
 * - every visible pair of a query and a key is attended once, and is once in dq, dk and dv, for every sequence and head:
 *   memory is followed through copies, messages and sums, so that stale, foreign or scrambled rows are found where used;
 * - every send meets a receive of as many bytes, in order, between the same ranks of the same group;
 * - no ranks wait for each other in a circle, on an engine where a message moves only when both sides have their turn;
 * - compute, and the caller that reads results, touches nothing that a collective under way uses, and no collective writes where
 *   it also reads;
 * - inputs, which are the caller's, end as they were.
 *
 * Rows are followed as boxes; a kernel that attention does not use leaves its output unknown, and unknown rows are rejected
 * where attention uses them.
 *
 * Of a record of classes, up to 1 024 ranks are recorded and replayed all the same. Of more ranks the representatives are
 * replayed, with each other and themselves as peers, and judged for all ranks of their classes. Then some other ranks, spread over
 * the mesh, are run and replayed alone, on what they receive if all do as their representatives, and must send what those send: a
 * backend that goes wrong on single ranks only, by their number, is found if these are among them.
 */
export function prove(run: AttentionRecord, options?: ProveOptions): Proof {
  checkRecord("prove", run);
  const { limit } = proveOptions.parse(options);
  if (run.classes.isIdentity) return proveRanks(run, limit);
  // Where every rank can be recorded, that is the stronger proof, and takes as long as checking each against its class.
  return run.classes.ranks > maxRecordedRanks
    ? proveRepresentatives(run, limit)
    : proveRanks(record(run.options), limit);
}

function proveRanks(run: AttentionRecord, limit: number): Proof {
  const violations = new Violations(limit);
  const context = verifierContext(run);
  replayAll(context, { violations, completeness: new SumCompleteness(context) });
  return {
    violations: violations.reported,
    total: violations.total,
    peakBytes: peakBytesByRank(run),
    replayed: run.ranks.length,
  };
}

/** As `prove`, by the representatives of classes and `comparedRanks` other ranks, or as many as take some seconds. */
export function proveRepresentatives(run: AttentionRecord, limit: number, comparedRanks?: readonly number[]): Proof {
  const { ranks, order } = run.classes;
  const events = Math.max(...run.ranks.map(({ tape }) => tape.events));
  const violations = new Violations(limit, order);
  const context = verifierContext(run);
  const quotient = new Quotient(run);
  const messageLog = new MessageLog(quotient);
  const memories = replayAll(context, { violations, completeness: new Coverage(context, "class"), messageLog });
  const proof = { peakBytes: peakBytesByRank(run), replayed: run.ranks.length };
  if (violations.total > 0) return { violations: violations.reported, total: violations.total, ...proof };
  const comparedRankList = (comparedRanks ?? sampledRanks(ranks, events)).filter(
    (rank) => run.classes.translationTo(rank) > 0,
  );
  const rankViolations = new Violations(limit);
  const completeness = new Coverage(context, "rank");
  const classProof = {
    context: { ...context, completeness, violations: rankViolations },
    quotient,
    messageLog,
    memories,
  };
  for (const rank of comparedRankList) {
    const difference = checkRank(run.recordRank(rank), classProof);
    if (difference) rankViolations.report({ kind: "class", rank, message: difference });
  }
  return {
    violations: rankViolations.reported,
    total: rankViolations.total,
    ...proof,
    replayed: run.ranks.length + comparedRankList.length,
  };
}

interface ReplayChecks {
  readonly violations: Violations;
  readonly completeness: Completeness;
  readonly messageLog?: MessageLog;
}

/** Replays all ranks of a record with one another; their memories in the end. */
function replayAll(verifier: VerifierContext, checks: ReplayChecks): ReturnType<typeof initialMemory>[] {
  const { record: run, positions } = verifier;
  const memories = run.ranks.map((recordedRank) => initialMemory(run, recordedRank, positions));
  const context = { ...verifier, ...checks, memories };
  const streams = new ReplayStreams(context);
  const replays = run.ranks.map((recordedRank, index) => {
    return new Replay(context, recordedRank, { index, memory: memories[index]!, streams });
  });
  for (const index of [...replays.keys()].toReversed()) streams.makeRunnable(index); // the last that becomes runnable runs first
  for (let index = streams.nextRunnable(); index !== undefined; index = streams.nextRunnable()) replays[index]!.run();
  for (const violation of findDeadlock(run, streams)) checks.violations.report(violation);
  for (const [index, recordedRank] of run.ranks.entries()) {
    if (replays[index]!.hasEnded) checkResults(context, recordedRank, memories[index]!);
  }
  return memories;
}

/** By rank: each holds what its representative does. */
function peakBytesByRank(run: AttentionRecord): number[] {
  const quotient = new Quotient(run);
  return Array.from({ length: run.classes.ranks }, (_, rank) => run.ranks[quotient.index(rank)]!.peakBytes);
}
