import { constants } from "node:os";
import type { Failure, RankError, RankExit } from "../job.ts";
import type { ErrorRecord } from "./error-record.ts";

/** Record of a rank whose process has exited. Times are milliseconds since the epoch. */
export interface RankRecord {
  readonly rank: number;
  readonly local: number;
  readonly pid: number;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly startedAt: number;
  readonly exitedAt: number;
  /** Time at which the launcher first signalled the rank to end; undefined if the rank exited before. */
  readonly stoppedAt: number | undefined;
  /** Whether the launcher sent SIGKILL to the rank. */
  readonly isKilled: boolean;
  /** The uncaught error of the rank. */
  readonly thrown: ErrorRecord | undefined;
  readonly stderrTail: readonly string[];
  /** The first lines of the uncaught error as printed by Node. */
  readonly uncaught: readonly string[];
  readonly log: string;
}

type ExitVerdict = RankExit["verdict"];

/** Errors caused by the exit of another rank. They are the root cause only if there is no other failure. */
const PEER_LOST_NAMES = ["PeerLostError"];
const PEER_LOST_CODES = ["ECONNRESET", "ECONNREFUSED", "EPIPE", "ECONNABORTED"];

/** Classifies the exit of a rank. */
export function classifyExit(record: RankRecord): ExitVerdict {
  const { code, stoppedAt, thrown } = record;
  const isOwnFailure = stoppedAt === undefined || failureTimeMs(record) < stoppedAt || crashedBySignal(record);
  if (code === 0) return stoppedAt === undefined ? "ok" : "stopped";
  if (thrown === undefined ? reportsPeerLost(record) : isPeerLost(thrown.error)) return "peer-lost";
  return isOwnFailure ? "failed" : "stopped";
}

/** Returns the exit code of a rank as in a shell: 128 + n for signal n. */
function shellExitCode({ code, signal }: Pick<RankRecord, "code" | "signal">): number {
  return signal === null ? (code ?? 1) : 128 + constants.signals[signal];
}

/**
 * Finds the first failure, by the time at which a rank threw an error or else exited. Ranks that failed by themselves
 * take precedence over ranks that lost a peer. Returns undefined if no rank failed.
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

/**
 * Returns the exit of a rank. After an uncaught error it is code 1, even if a signal ended Node while it printed the
 * error.
 */
function effectiveExit(record: RankRecord): Pick<RankRecord, "code" | "signal"> {
  const { code, signal, thrown, stoppedAt } = record;
  const isInterruptedPrint = thrown !== undefined && stoppedAt !== undefined && shellExitCode(record) > 128;
  return isInterruptedPrint && !crashedBySignal(record) ? { code: 1, signal: null } : { code, signal };
}

/**
 * Whether the stack names a line of the user's code. For a syntax error or a missing module, only Node's output names
 * it.
 */
const hasUserFrame = ({ stack = "" }: RankError): boolean =>
  stack.split("\n").some((line) => /^\s+at .*[^>]:\d+:\d+\)?$/.test(line) && !/\bnode:/.test(line));

/**
 * Returns the source excerpt of an error without a frame at its location: location, source line and marker. Empty for a
 * location in Node itself.
 */
function extractSourceExcerpt(record: RankRecord): Pick<Failure, "source"> {
  const source = findLinesBeforeHeading(record).filter((line) => line.trim() !== "");
  return source.length === 0 || source[0]?.startsWith("node:") === true ? {} : { source };
}

/**
 * Returns the lines before the name and the message of such an error. For a syntax error in a CommonJS module and for a
 * missing export, the stack begins with them. Otherwise Node prints them before the stack.
 */
function findLinesBeforeHeading({ thrown, uncaught }: RankRecord): readonly string[] {
  if (thrown === undefined) return [];
  const { name, stack = "" } = thrown.error;
  const stackLines = stack.split("\n");
  const [firstLine] = stackLines as [string, ...string[]];
  const headingIndex = /:\d+$/.test(firstLine) ? stackLines.findIndex((line) => line.startsWith(name)) : 0;
  if (headingIndex > 0) return stackLines.slice(0, headingIndex);
  return hasUserFrame(thrown.error) ? [] : uncaught.slice(0, Math.max(0, uncaught.indexOf(firstLine)));
}

const failureTimeMs = ({ thrown, exitedAt }: RankRecord): number => Math.min(thrown?.timeMs ?? exitedAt, exitedAt);

/**
 * Returns whether a rank crashed by a signal. The launcher never sends the listed signals, so they are crashes
 * even after a stop. SIGKILL is a crash if the launcher did not send it: the exit may be noticed after those of ranks
 * that lost this peer.
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

/**
 * Whether stderr names a peer-lost error. A rank that catches its errors, prints them and exits leaves no error record.
 */
const reportsPeerLost = ({ stderrTail }: RankRecord): boolean =>
  stderrTail.some((line) => PEER_LOST_NAMES.some((name) => line.includes(name)));

/** Describes ranks that exited with 0 too early. They are a cause only if no rank failed by itself. */
function describeEarlyExits(root: RankRecord, records: readonly RankRecord[]): string | undefined {
  if (classifyExit(root) !== "peer-lost") return undefined;
  const exitedRanks = records
    .filter((record) => classifyExit(record) === "ok" && record.exitedAt <= root.exitedAt)
    .map(({ rank }) => rank);
  if (exitedRanks.length === 0) return undefined;
  return `exited with 0 before the other ranks ended: rank${exitedRanks.length === 1 ? "" : "s"} ${exitedRanks.join(",")}`;
}
