import type { RankError } from "../job.ts";
import type { RankRecord } from "./diagnose.ts";
import { findPortOwner, readOrEmpty } from "./port-owner.ts";

/** Hint if the launcher has no file descriptors left. Each rank needs five. */
export const TOO_MANY_FILES_HINT = "too many open files; raise the limit (ulimit -n 4096), or start fewer ranks";
/** Exit code for a program that was found but could not be started, as in a shell. */
export const CANNOT_EXECUTE_EXIT_CODE = 126;

/** Returns the meaning of a rank's exit and a remedy; undefined if the exit needs no explanation. */
export function explainExit(record: RankRecord, initialOomKills: number): string | undefined {
  const { code, signal, stderrTail, thrown } = record;
  if ((signal === "SIGABRT" || code === 134) && stderrTail.some((line) => line.includes("heap out of memory")))
    return "the JavaScript heap is full; increase its limit: --node-arg=--max-old-space-size=8192 (MB)";
  if (signal === "SIGKILL" || code === 137)
    return countOomKills() > initialOomKills
      ? "the kernel ran out of memory and killed the rank (cgroup oom_kill); use fewer ranks or smaller shards"
      : "killed by another process, not by the launcher; check the kernel log (dmesg) for an out-of-memory kill";
  if (code === CANNOT_EXECUTE_EXIT_CODE && stderrTail.some((line) => /\bE[MN]FILE\b/.test(line)))
    return TOO_MANY_FILES_HINT;
  if (code === 13) return "a top-level await never settled, and the event loop is empty";
  if (signal === "SIGSEGV" || signal === "SIGBUS" || signal === "SIGILL" || signal === "SIGFPE")
    return `native code crashed (${signal}); run this rank under gdb; if it is a Node program, rebuild its native addons for this version of Node`;
  return findCommonJsHint(record) ?? (thrown === undefined ? undefined : findAddressInUseHint(thrown.error));
}

/**
 * Returns a hint if the package.json has type "commonjs" or none, as often in new projects. tsx throws the error, Node
 * prints it.
 */
function findCommonJsHint({ thrown, stderrTail }: RankRecord): string | undefined {
  const errorPattern = /Top-level await .*"cjs"|Cannot use import statement outside a module/;
  if (![thrown?.error.message ?? "", ...stderrTail].some((text) => errorPattern.test(text))) return undefined;
  return 'Node loaded an ES module as CommonJS; set "type": "module" in package.json, or rename the file to .mts or .mjs';
}

function findAddressInUseHint(error: RankError): string | undefined {
  if (error.code !== "EADDRINUSE") return error.cause === undefined ? undefined : findAddressInUseHint(error.cause);
  const port = Number(/:(\d+)\b/.exec(error.message)?.[1]);
  const owner = Number.isNaN(port) ? undefined : findPortOwner(port);
  if (owner === undefined) return "the port is in use by another process; listen on port 0 to get a free one";
  return `port ${port} is in use by ${owner}; listen on port 0 to get a free one`;
}

/**
 * Returns the number of processes of this cgroup that the kernel has killed for lack of memory; 0 if it is not counted.
 */
export function countOomKills(): number {
  for (const line of readOrEmpty("/proc/self/cgroup").split("\n")) {
    const [, controllers, path] = line.split(":");
    const files =
      controllers === ""
        ? [`/sys/fs/cgroup${path}/memory.events`, `/sys/fs/cgroup/unified${path}/memory.events`]
        : controllers === "memory"
          ? [`/sys/fs/cgroup/memory${path}/memory.oom_control`]
          : [];
    for (const file of files) {
      const killCount = /^oom_kill (\d+)$/m.exec(readOrEmpty(file))?.[1];
      if (killCount !== undefined) return Number(killCount);
    }
  }
  return 0;
}
