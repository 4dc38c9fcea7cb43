import { relative } from "node:path";
import type { Failure, RankError } from "../job.ts";
import { KEPT_FOR } from "../output/kept-logs.ts";

/** The most that a report shows of one message. */
const LONGEST_MESSAGE = 2000;
const MOST_MESSAGE_LINES = 20;
/** The most lines of frames, causes and output in a report. */
const MOST_DETAIL = 80;

/**
 * The report of a first failure, the last thing a failed job prints; what the rank printed is left out where that was
 * shown; why a rank could not be started (pid 0) was not. Lines without ends.
 */
export function failureText(failure: Failure, isShown = false): readonly string[] {
  const { rank, node, local, pid, afterMs, attempt, error } = failure;
  const what = error === undefined ? ending(failure) : cut(headOf(error), failure.log);
  const when = `${(afterMs / 1000).toFixed(1)} s into attempt ${attempt}`;
  const source = (failure.source ?? []).map((line) => `    │ ${cut(line, failure.log)}`);
  const tail = (isShown && pid > 0 ? [] : failure.stderrTail).map((line) => `    │ ${cut(line, failure.log)}`);
  const all = error === undefined ? tail : [...source, ...frames(error), ...causes(error, failure.log), ...tail];
  const rest = `    … ${all.length - MOST_DETAIL} more lines in ${shortest(failure.log)}`;
  const detail = all.length <= MOST_DETAIL ? all : [...all.slice(0, MOST_DETAIL), rest];
  const code = failure.exitCode;
  return [
    ...`✖ rank ${rank} (${node}, local ${local}, pid ${pid}) failed ${when}: ${what}`.split("\n"),
    ...detail,
    ...(failure.hint === undefined ? [] : [`  hint: ${failure.hint}`]),
    ...(failure.notRestarted === undefined ? [] : [`  not restarted: ${failure.notRestarted}`]),
    `  ${[ending(failure), ...aftermath(failure)].join(" · ")}`,
    ...(failure.logDir === undefined ? [] : [allLogs(failure.logDir, failure.logsExpire === true)]),
    `  logs ${shortest(failure.log)}   exit code ${code}`,
  ];
}

const allLogs = (dir: string, expire: boolean): string =>
  `  log folder of all ranks: ${shortest(dir)}${expire ? `, ${KEPT_FOR}; see --log-dir` : ""}`;

const ending = ({ code, signal }: Failure): string => (signal === null ? `exit ${code}` : `killed by ${signal}`);

function aftermath({ stopped, secondary }: Failure): readonly string[] {
  const ranks = stopped.length === 1 ? "1 rank" : `${stopped.length} ranks`;
  const groups = groupBy(secondary);
  const whys = [...groups].map(([why, list]) => `rank${list.length === 1 ? "" : "s"} ${list.join(",")}: ${why}`);
  return [
    ...(stopped.length === 0 ? [] : [`${ranks} stopped by launcher`]),
    ...(secondary.length === 0 ? [] : [`${secondary.length} secondary (${whys.join("; ")})`]),
  ];
}

function groupBy(secondary: Failure["secondary"]): ReadonlyMap<string, readonly number[]> {
  const groups = new Map<string, number[]>();
  for (const { rank, why } of secondary) groups.set(why, [...(groups.get(why) ?? []), rank]);
  return groups;
}

const headOf = ({ name, message }: RankError): string => `${name}: ${message}`;

/** The beginning of a long text, and where all of it is. */
function cut(text: string, log: string): string {
  const lines = text.split("\n", MOST_MESSAGE_LINES).join("\n");
  const shown = lines.slice(0, LONGEST_MESSAGE).replace(/[\ud800-\udbff]$/, "");
  if (shown.length === text.length) return text;
  return `${shown} … (${text.length - shown.length} more characters in ${shortest(log)})`;
}

/** The frames of a stack, without the lines that repeat name and message. */
function frames({ stack = "", message }: RankError): readonly string[] {
  const after = stack.indexOf(message);
  return stack
    .slice(after < 0 ? 0 : after + message.length)
    .split("\n")
    .filter((line) => /^\s+at /.test(line))
    .map((line) => `    ${line.trim()}`);
}

function causes(error: RankError, log: string): readonly string[] {
  const inner = [...(error.cause === undefined ? [] : [error.cause]), ...(error.errors ?? [])];
  return inner.flatMap((one) => [
    ...`  caused by ${cut(headOf(one), log)}`.split("\n"),
    ...frames(one),
    ...causes(one, log),
  ]);
}

/** A path as a user in this directory would type it, when that is shorter. */
function shortest(path: string): string {
  const near = relative(process.cwd(), path);
  return near.startsWith("..") ? path : `./${near}`;
}
