import { defineOptions, option, type OptionsOf } from "@mosaic/core";
import { Quotient } from "../symmetry/quotient.ts";
import { sampleRanks } from "../symmetry/translations.ts";
import { type AttentionRecord, checkRecord, maxRecordedRanks, record } from "../record.ts";
import { SumCompleteness } from "./completeness.ts";
import {
  type Completeness,
  type Violation,
  Violations,
  type VerifierContext,
  createVerifierContext,
} from "./context.ts";
import { Coverage } from "./coverage.ts";
import { findDeadlock } from "./deadlock.ts";
import { MessageLog } from "./message-log.ts";
import { checkRank } from "./rank-check.ts";
import { createInitialMemory, Replay } from "./replay.ts";
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
export function prove(attentionRecord: AttentionRecord, options?: ProveOptions): Proof {
  checkRecord("prove", attentionRecord);
  const { limit } = proveOptions.parse(options);
  if (attentionRecord.classes.isIdentity) return proveRanks(attentionRecord, limit);
  // Where every rank can be recorded, that is the stronger proof, and takes as long as checking each against its class.
  return attentionRecord.classes.ranks > maxRecordedRanks
    ? proveRepresentatives(attentionRecord, limit)
    : proveRanks(record(attentionRecord.options), limit);
}

function proveRanks(attentionRecord: AttentionRecord, limit: number): Proof {
  const violations = new Violations(limit);
  const context = createVerifierContext(attentionRecord);
  replayAll(context, { violations, completeness: new SumCompleteness(context) });
  return {
    violations: violations.reportedViolations,
    total: violations.total,
    peakBytes: peakBytesByRank(attentionRecord),
    replayed: attentionRecord.ranks.length,
  };
}

/** As `prove`, by the representatives of classes and `comparedRanks` other ranks, or as many as take some seconds. */
export function proveRepresentatives(
  attentionRecord: AttentionRecord,
  limit: number,
  comparedRanks?: readonly number[],
): Proof {
  const { ranks, order } = attentionRecord.classes;
  const maxEvents = Math.max(...attentionRecord.ranks.map(({ tape }) => tape.events));
  const violations = new Violations(limit, order);
  const context = createVerifierContext(attentionRecord);
  const quotient = new Quotient(attentionRecord);
  const messageLog = new MessageLog(quotient);
  const memories = replayAll(context, { violations, completeness: new Coverage(context, "class"), messageLog });
  const commonFields = { peakBytes: peakBytesByRank(attentionRecord), replayed: attentionRecord.ranks.length };
  if (violations.total > 0)
    return { violations: violations.reportedViolations, total: violations.total, ...commonFields };
  const ranksToCompare = (comparedRanks ?? sampleRanks(ranks, maxEvents)).filter(
    (rank) => attentionRecord.classes.translationTo(rank) > 0,
  );
  const rankViolations = new Violations(limit);
  const completeness = new Coverage(context, "rank");
  const classProof = {
    context: { ...context, completeness, violations: rankViolations },
    quotient,
    messageLog,
    memories,
  };
  for (const rank of ranksToCompare) {
    const difference = checkRank(attentionRecord.recordRank(rank), classProof);
    if (difference) rankViolations.report({ kind: "class", rank, message: difference });
  }
  return {
    violations: rankViolations.reportedViolations,
    total: rankViolations.total,
    ...commonFields,
    replayed: attentionRecord.ranks.length + ranksToCompare.length,
  };
}

interface ReplayChecks {
  readonly violations: Violations;
  readonly completeness: Completeness;
  readonly messageLog?: MessageLog;
}

/** Replays all ranks of a record with one another; their memories in the end. */
function replayAll(verifier: VerifierContext, checks: ReplayChecks): ReturnType<typeof createInitialMemory>[] {
  const { record: attentionRecord, positions } = verifier;
  const memories = attentionRecord.ranks.map((recordedRank) =>
    createInitialMemory(attentionRecord, recordedRank, positions),
  );
  const context = { ...verifier, ...checks, memories };
  const streams = new ReplayStreams(context);
  const replays = attentionRecord.ranks.map((recordedRank, index) => {
    return new Replay(context, recordedRank, { index, memory: memories[index]!, streams });
  });
  for (const index of [...replays.keys()].toReversed()) streams.makeRunnable(index); // the last that becomes runnable runs first
  for (let index = streams.takeRunnableRank(); index !== undefined; index = streams.takeRunnableRank())
    replays[index]!.run();
  for (const violation of findDeadlock(attentionRecord, streams)) checks.violations.report(violation);
  for (const [index, recordedRank] of attentionRecord.ranks.entries()) {
    if (replays[index]!.hasEnded) checkResults(context, recordedRank, memories[index]!);
  }
  return memories;
}

/** By rank: each holds what its representative does. */
function peakBytesByRank(attentionRecord: AttentionRecord): number[] {
  const quotient = new Quotient(attentionRecord);
  return Array.from(
    { length: attentionRecord.classes.ranks },
    (_, rank) => attentionRecord.ranks[quotient.representativeIndex(rank)]!.peakBytes,
  );
}
