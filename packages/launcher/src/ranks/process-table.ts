import { readdirSync, readFileSync } from "node:fs";
import { LAUNCHER_ID_VARIABLE } from "../environment.ts";

/** A living process, as /proc shows it. */
interface LiveProcess {
  readonly pid: number;
  readonly group: number;
}

/**
 * The living processes that belong to a job: they carry its launcher's id in their environment, or are in one of `groups`.
 *
 * A zombie is dead, though `kill(pid, 0)` reports otherwise. Empty where there is no /proc, and blind to what other users
 * own; process groups and the ranks' own watch remain there.
 */
export function listJobPids(launcherId: string, groups: ReadonlySet<number> = new Set()): readonly number[] {
  const environmentEntry = Buffer.from(`${LAUNCHER_ID_VARIABLE}=${launcherId}\0`);
  return listLiveProcesses()
    .filter(({ pid }) => pid !== process.pid)
    .filter(({ pid, group }) => groups.has(group) || environmentContains(pid, environmentEntry))
    .map(({ pid }) => pid);
}

/** Sends a signal to a process, or with a negative id to its group; false when no process of it is left. */
export function sendSignal(pid: number, signal: NodeJS.Signals): boolean {
  try {
    return process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ESRCH") return false;
    // EPERM: a rank that changed its user. Nothing can be done, and the other ranks must still be ended.
    return true;
  }
}

function listLiveProcesses(): readonly LiveProcess[] {
  let names: readonly string[];
  try {
    names = readdirSync("/proc");
  } catch {
    return [];
  }
  return names.filter((name) => /^\d+$/.test(name)).flatMap((name) => readStat(Number(name)) ?? []);
}

/** `pid (command) state ppid group …`; the command may hold spaces and parentheses, so it is cut at the last one. */
function readStat(pid: number): LiveProcess | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, "latin1");
    const [state, , group] = text.slice(text.lastIndexOf(")") + 2).split(" ");
    return state === "Z" || state === "X" ? undefined : { pid, group: Number(group) };
  } catch {
    return undefined;
  }
}

/** The environments of all living processes that this user may read, as they were when the processes began. */
export function readProcessEnvironments(): readonly Readonly<Record<string, string>>[] {
  return listLiveProcesses().flatMap(({ pid }) => {
    try {
      const pairs = readFileSync(`/proc/${pid}/environ`, "utf8").split("\0");
      return [
        Object.fromEntries(pairs.map((pair) => [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)])),
      ];
    } catch {
      return [];
    }
  });
}

function environmentContains(pid: number, environmentEntry: Buffer): boolean {
  try {
    const environment = readFileSync(`/proc/${pid}/environ`);
    const entryOffset = environment.indexOf(environmentEntry);
    return entryOffset === 0 || (entryOffset > 0 && environment[entryOffset - 1] === 0);
  } catch {
    return false;
  }
}
