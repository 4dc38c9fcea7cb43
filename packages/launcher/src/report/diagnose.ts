import { constants } from "node:os";
import type { Failure, RankError, RankExit } from "../job.ts";
import type { ErrorRecord } from "./error-record.ts";

/** Everything known about a rank whose process is gone. Times are milliseconds since the epoch. */
export interface RankRecord {
  readonly rank: number;
  readonly local: number;
  readonly pid: number;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly startedAt: number;
  readonly exitedAt: number;
  /** When the launcher first signalled it to end; undefined if it ended before. */
  readonly stoppedAt: number | undefined;
  /** Whether the launcher sent it SIGKILL. */
  readonly isKilled: boolean;
  /** What it threw and did not catch. */
  readonly thrown: ErrorRecord | undefined;
  readonly stderrTail: readonly string[];
  /** The first lines of Node's print of it. */
  readonly uncaught: readonly string[];
  readonly log: string;
}

type ExitVerdict = RankExit["verdict"];

/** Errors that mean "another rank has ended": never the root cause while there is another. */
const PEER_LOST_NAMES = ["PeerLostError"];
const PEER_LOST_CODES = ["ECONNRESET", "ECONNREFUSED", "EPIPE", "ECONNABORTED"];

/** Why this rank ended. */
export function classifyExit(record: RankRecord): ExitVerdict {
  const { code, stoppedAt, thrown } = record;
  const isOwnFailure = stoppedAt === undefined || failureTimeMs(record) < stoppedAt || crashedBySignal(record);
  if (code === 0) return stoppedAt === undefined ? "ok" : "stopped";
  if (thrown === undefined ? reportsPeerLost(record) : isPeerLost(thrown.error)) return "peer-lost";
  return isOwnFailure ? "failed" : "stopped";
}

/** The exit code of a rank as a shell would give it: 128 + n for signal n. */
export function shellExitCode({ code, signal }: Pick<RankRecord, "code" | "signal">): number {
  return signal === null ? (code ?? 1) : 128 + constants.signals[signal];
}

/**
 * Finds the first failure: the earliest, by the time at which a rank threw or else was gone, among those that failed
 * of their own accord; only when there is none, among those that lost a peer. Undefined when no rank failed.
 */
export function diagnose(
  records: readonly RankRecord[],
  attempt: { readonly number: number; readonly node: string },
  findHint: (root: RankRecord) => string | undefined,
): Failure | undefined {
  const recordsInTimeOrder = records.toSorted((a, b) => failureTimeMs(a) - failureTimeMs(b));
  const root =
    recordsInTimeOrder.find((record) => classifyExit(record) === "failed") ??
    recordsInTimeOrder.find((record) => classifyExit(record) === "peer-lost");
  if (root === undefined) return undefined;
  const otherRecords = records.filter((record) => record !== root);
  const help = describeEarlyExits(root, records) ?? findHint(root);
  return {
    attempt: attempt.number,
    node: attempt.node,
    rank: root.rank,
    local: root.local,
    pid: root.pid,
    afterMs: failureTimeMs(root) - root.startedAt,
    ...effectiveExit(root),
    exitCode: shellExitCode(effectiveExit(root)),
    ...(root.thrown === undefined ? {} : { error: root.thrown.error }),
    stderrTail:
      root.uncaught.length > 0 || (root.thrown !== undefined && hasUserFrame(root.thrown.error)) ? [] : root.stderrTail,
    ...extractSourceExcerpt(root),
    ...(help === undefined ? {} : { hint: help }),
    log: root.log,
    stopped: otherRecords.filter((record) => classifyExit(record) === "stopped").map(({ rank }) => rank),
    secondary: otherRecords.flatMap((record) => listSecondaryFailures(record)),
  };
}

function listSecondaryFailures(record: RankRecord): readonly { readonly rank: number; readonly reason: string }[] {
  const verdict = classifyExit(record);
  if (verdict === "peer-lost") return [{ rank: record.rank, reason: "peer lost" }];
  if (verdict !== "failed") return [];
  const { thrown, signal, code } = record;
  return [{ rank: record.rank, reason: thrown?.error.name ?? (signal === null ? `exit ${code}` : signal) }];
}

/** How it ended, or would have: Node ends with 1 after an uncaught error, unless it is signalled to end while it still prints that. */
function effectiveExit(record: RankRecord): Pick<RankRecord, "code" | "signal"> {
  const { code, signal, thrown, stoppedAt } = record;
  const isInterruptedPrint = thrown !== undefined && stoppedAt !== undefined && shellExitCode(record) > 128;
  return isInterruptedPrint && !crashedBySignal(record) ? { code: 1, signal: null } : { code, signal };
}

/** A syntax error or a missing module is thrown by Node itself: its stack names no line of the user's, its output does. */
const hasUserFrame = ({ stack = "" }: RankError): boolean =>
  stack.split("\n").some((line) => /^\s+at .*[^>]:\d+:\d+\)?$/.test(line) && !/\bnode:/.test(line));

/** What Node prints before such an error: the place, the line and a mark under it. Nothing where that is a place in Node. */
function extractSourceExcerpt({ thrown, uncaught }: RankRecord): Pick<Failure, "source"> {
  if (thrown === undefined || hasUserFrame(thrown.error)) return {};
  const errorLineIndex = uncaught.indexOf((thrown.error.stack ?? "").split("\n", 1)[0] as string);
  const source = uncaught.slice(0, Math.max(0, errorLineIndex)).filter((line) => line.trim() !== "");
  return source.length === 0 || source[0]?.startsWith("node:") === true ? {} : { source };
}

const failureTimeMs = ({ thrown, exitedAt }: RankRecord): number => Math.min(thrown?.timeMs ?? exitedAt, exitedAt);

/**
 * The launcher sends only signals SIGINT, SIGTERM and SIGKILL; a rank that died of another crashed, whatever signal it was sent.
 * So did one that died of SIGKILL before the launcher sent that: its exit may be noticed after those of ranks that lost it.
 */
function crashedBySignal({ signal, isKilled }: RankRecord): boolean {
  if (signal === "SIGKILL") return !isKilled;
  return signal !== null && ["SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS"].includes(signal);
}

function isPeerLost(error: RankError): boolean {
  if (PEER_LOST_NAMES.includes(error.name)) return true;
  if (error.code !== undefined && PEER_LOST_CODES.includes(error.code)) return true;
  if (error.errors !== undefined && error.errors.length > 0) return error.errors.every(isPeerLost);
  return error.cause !== undefined && isPeerLost(error.cause);
}

/** A rank that catches its errors, prints them and exits leaves no record, but has printed the name. */
const reportsPeerLost = ({ stderrTail }: RankRecord): boolean =>
  stderrTail.some((line) => PEER_LOST_NAMES.some((name) => line.includes(name)));

/** When no rank failed by itself, one exited too early: a rank that exited with 0 is not a cause otherwise. */
function describeEarlyExits(root: RankRecord, records: readonly RankRecord[]): string | undefined {
  if (classifyExit(root) !== "peer-lost") return undefined;
  const exitedRanks = records
    .filter((record) => classifyExit(record) === "ok" && record.exitedAt <= root.exitedAt)
    .map(({ rank }) => rank);
  if (exitedRanks.length === 0) return undefined;
  return `exited with 0 before the other ranks ended: rank${exitedRanks.length === 1 ? "" : "s"} ${exitedRanks.join(",")}`;
}
