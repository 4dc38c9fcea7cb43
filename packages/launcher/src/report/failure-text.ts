import { relative } from "node:path";
import type { Failure, LostNode, RankError } from "../job.ts";
import { RETENTION_TEXT } from "../output/log-retention.ts";

/** Limits for one message in a report. */
const MAX_MESSAGE_LENGTH = 2000;
const MAX_MESSAGE_LINES = 20;
/** Maximum number of lines of stack frames, causes and output in a report. */
const MAX_DETAIL_LINES = 80;

/**
 * Returns the report of a first failure, which a failed job prints last, as lines without line ends. With
 * `isOutputShown` the rank's stderr is omitted, except the reason why a rank could not be started (pid 0), which has
 * not been shown.
 */
export function failureLines(failure: Failure, isOutputShown = false): readonly string[] {
  const { rank, local, pid, afterMs, attempt, error } = failure;
  const node = failure.nodeRank === undefined ? failure.node : `node ${failure.nodeRank}: ${failure.node}`;
  const failureSummary = error === undefined ? formatExit(failure) : truncate(formatHeading(error), failure.log);
  const elapsedText = `${(afterMs / 1000).toFixed(1)} s into attempt ${attempt}`;
  const source = (failure.source ?? []).map((line) => `    │ ${truncate(line, failure.log)}`);
  const stderrLines = (isOutputShown && pid > 0 ? [] : failure.stderrTail).map(
    (line) => `    │ ${truncate(line, failure.log)}`,
  );
  const detailLines =
    error === undefined
      ? stderrLines
      : [...source, ...stackFrames(error), ...formatCauses(error, failure.log), ...stderrLines];
  const omittedText = `    … ${detailLines.length - MAX_DETAIL_LINES} more lines in ${formatPath(failure.log)}`;
  const shownLines =
    detailLines.length <= MAX_DETAIL_LINES ? detailLines : [...detailLines.slice(0, MAX_DETAIL_LINES), omittedText];
  const code = failure.exitCode;
  return [
    ...`✖ rank ${rank} (${node}, local ${local}, pid ${pid}) failed ${elapsedText}: ${failureSummary}`.split("\n"),
    ...shownLines,
    ...(failure.hint === undefined ? [] : [`  hint: ${failure.hint}`]),
    ...(error?.help === undefined ? [] : [`  causes and remedies: ${truncate(error.help, failure.log)}`]),
    ...(failure.noRestartReason === undefined ? [] : [`  not restarted: ${failure.noRestartReason}`]),
    `  ${[formatExit(failure), ...formatSecondaryFailures(failure)].join(" · ")}`,
    ...formatLogDir(failure),
    `  logs ${formatPath(failure.log)}${failure.nodeRank === undefined ? "" : ` on ${failure.node}`}   exit code ${code}`,
  ];
}

/** Returns the report of a lost node, as lines without line ends. */
export function lostNodeLines({ nodeRank, node, reason, afterMs, attempt }: LostNode): readonly string[] {
  return [`✖ node ${nodeRank} (${node}) was lost ${(afterMs / 1000).toFixed(1)} s into attempt ${attempt}: ${reason}`];
}

/** In a job on several nodes, the directory contains the logs of other nodes only in a shared file system. */
function formatLogDir({ logDir, nodeRank, areLogsTemporary }: Failure): readonly string[] {
  if (logDir === undefined) return [];
  const ranks = nodeRank === undefined ? "all ranks" : "the ranks of node 0";
  const retention = areLogsTemporary === true ? `, ${RETENTION_TEXT}; see --log-dir` : "";
  return [`  log directory of ${ranks}: ${formatPath(logDir)}${retention}`];
}

const formatExit = ({ code, signal }: Failure): string => (signal === null ? `exit ${code}` : `killed by ${signal}`);

function formatSecondaryFailures({ stopped, secondary }: Failure): readonly string[] {
  const ranks = stopped.length === 1 ? "1 rank" : `${stopped.length} ranks`;
  const groups = groupByReason(secondary);
  const reasonTexts = [...groups].map(
    ([reason, reasonRanks]) => `rank${reasonRanks.length === 1 ? "" : "s"} ${reasonRanks.join(",")}: ${reason}`,
  );
  return [
    ...(stopped.length === 0 ? [] : [`${ranks} stopped by launcher`]),
    ...(secondary.length === 0 ? [] : [`${secondary.length} also failed (${reasonTexts.join("; ")})`]),
  ];
}

function groupByReason(secondary: Failure["secondary"]): ReadonlyMap<string, readonly number[]> {
  const groups = new Map<string, number[]>();
  for (const { rank, reason } of secondary) groups.set(reason, [...(groups.get(reason) ?? []), rank]);
  return groups;
}

const formatHeading = ({ name, message }: RankError): string => `${name}: ${message}`;

/** Truncates a long text, and adds the path of the log that contains all of it. */
function truncate(text: string, log: string): string {
  const lines = text.split("\n", MAX_MESSAGE_LINES).join("\n");
  const truncatedText = lines.slice(0, MAX_MESSAGE_LENGTH).replace(/[\ud800-\udbff]$/, "");
  if (truncatedText.length === text.length) return text;
  return `${truncatedText} … (${text.length - truncatedText.length} more characters in ${formatPath(log)})`;
}

/** Returns the frames of a stack, without the lines that repeat name and message. */
function stackFrames({ stack = "", message }: RankError): readonly string[] {
  const messageIndex = stack.indexOf(message);
  return stack
    .slice(messageIndex < 0 ? 0 : messageIndex + message.length)
    .split("\n")
    .filter((line) => /^\s+at /.test(line))
    .map((line) => `    ${line.trim()}`);
}

function formatCauses(error: RankError, log: string): readonly string[] {
  const innerErrors = [...(error.cause === undefined ? [] : [error.cause]), ...(error.errors ?? [])];
  return innerErrors.flatMap((innerError) => [
    ...`  caused by ${truncate(formatHeading(innerError), log)}`.split("\n"),
    ...stackFrames(innerError),
    ...formatCauses(innerError, log),
  ]);
}

/** Returns the path relative to the working directory if it is below it, else the path itself. */
function formatPath(path: string): string {
  const relativePath = relative(process.cwd(), path);
  return relativePath.startsWith("..") ? path : `./${relativePath}`;
}
