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
  /** Maximum number of violations that are kept; all are counted. Default 10. */
  limit: option.integer({ min: 0, default: 10 }),
});
/** Options of a proof. */
export type ProveOptions = OptionsOf<typeof proveOptions>;

/** Result of a proof. */
export interface Proof {
  /** The first violations found; empty if the record is correct. */
  readonly violations: readonly Violation[];
  /** Number of violations, including those not kept. */
  readonly total: number;
  /** Peak allocated memory in bytes, by rank. */
  readonly peakBytes: readonly number[];
  /** Number of ranks replayed: all or, for a large record of classes, the representatives and some others. */
  readonly replayed: number;
}

/**
 * Replays a record and checks that
 *
 * - every visible pair of a query and a key is attended once, and is once in dq, dk and dv, for every sequence and
 *   head. Contents of memory are tracked through copies, messages and sums, so that stale, wrong or scrambled rows are
 *   found where they are used;
 * - every send matches a receive of equal size, in order, between the same ranks of the same group;
 * - no ranks wait for each other in a cycle, on an engine that transfers a message only when both sides have reached
 *   it;
 * - compute, and the caller that reads results, touch nothing that a pending collective uses, and no collective
 *   writes where it also reads;
 * - inputs, which belong to the caller, are unchanged at the end.
 *
 * Rows are tracked as boxes. The output of a kernel that attention does not use is unknown, and unknown rows are
 * rejected where attention uses them.
 *
 * A record of classes with up to 1 024 ranks is recorded again with all ranks, which are replayed. With more ranks,
 * the representatives are replayed, with each other and themselves as peers, and the result applies to all ranks of
 * their classes. Then some other ranks, spread over the mesh, are run and replayed alone, on the messages that they
 * receive if all ranks behave like their representatives, and must send the same as those. A backend that fails only
 * on certain rank numbers is found if these are among them.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { prove, record } from "@mosaic/planner";
 * const run = record({ backend: ring(), mesh: { sp: 3 }, tokens: 10, numHeads: 2, headDim: 8 });
 * const { violations, replayed } = prove(run);
 * [violations, replayed]; // => [[], 3]
 * ```
 * @throws OptionError unless `attentionRecord` is a record.
 */
export function prove(attentionRecord: AttentionRecord, options?: ProveOptions): Proof {
  checkRecord("prove", attentionRecord);
  const { limit } = proveOptions.parse(options);
  if (attentionRecord.classes.isIdentity) return proveRanks(attentionRecord, limit);
  // If every rank can be recorded, this is the stronger proof, and takes as long as checking each rank against its
  // class.
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

/**
 * Proves a record with the representatives of classes and `comparedRanks` other ranks; by default, as many as take some
 * seconds.
 */
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

/** Replays all ranks of a record together. Returns their final memories. */
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
  for (const index of [...replays.keys()].toReversed()) streams.makeRunnable(index); // the last one runs first
  for (let index = streams.takeRunnableRank(); index !== undefined; index = streams.takeRunnableRank())
    replays[index]!.run();
  for (const violation of findDeadlock(attentionRecord, streams)) checks.violations.report(violation);
  for (const [index, recordedRank] of attentionRecord.ranks.entries()) {
    if (replays[index]!.hasEnded) checkResults(context, recordedRank, memories[index]!);
  }
  return memories;
}

/** Returns the peak memory of each rank, which is that of its representative. */
function peakBytesByRank(attentionRecord: AttentionRecord): number[] {
  const quotient = new Quotient(attentionRecord);
  return Array.from(
    { length: attentionRecord.classes.ranks },
    (_, rank) => attentionRecord.ranks[quotient.representativeIndex(rank)]!.peakBytes,
  );
}
