import { relative } from "node:path";
import type { Failure, RankError } from "../job.ts";

/** The report of a first failure, the last thing a failed job prints. Lines without ends. */
export function failureText(failure: Failure): readonly string[] {
  const { rank, node, local, pid, afterMs, attempt, error } = failure;
  const what = error === undefined ? ending(failure) : `${error.name}: ${error.message}`;
  const when = `${(afterMs / 1000).toFixed(1)} s into attempt ${attempt}`;
  const tail = failure.stderrTail.map((line) => `    │ ${line}`);
  const detail = error === undefined ? tail : [...frames(error), ...causes(error), ...tail];
  const code = failure.exitCode;
  return [
    ...`✖ rank ${rank} (${node}, local ${local}, pid ${pid}) failed ${when}: ${what}`.split("\n"),
    ...detail,
    ...(failure.hint === undefined ? [] : [`  hint: ${failure.hint}`]),
    ...(failure.notRestarted === undefined ? [] : [`  not restarted: ${failure.notRestarted}`]),
    `  ${[ending(failure), ...aftermath(failure)].join(" · ")}`,
    `  logs ${shortest(failure.log)}   exit code ${code}`,
  ];
}

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

/** The frames of a stack, without the lines that repeat name and message. */
function frames({ stack = "" }: RankError): readonly string[] {
  return stack
    .split("\n")
    .filter((line) => /^\s+at /.test(line))
    .map((line) => `    ${line.trim()}`);
}

function causes(error: RankError): readonly string[] {
  const inner = [...(error.cause === undefined ? [] : [error.cause]), ...(error.errors ?? [])];
  return inner.flatMap((one) => [
    ...`  caused by ${one.name}: ${one.message}`.split("\n"),
    ...frames(one),
    ...causes(one),
  ]);
}

/** A path as a user in this directory would type it, when that is shorter. */
function shortest(path: string): string {
  const near = relative(process.cwd(), path);
  return near.startsWith("..") ? path : `./${near}`;
}
