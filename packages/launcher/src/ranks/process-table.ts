import { readdirSync, readFileSync } from "node:fs";
import { LAUNCHER_ID_VARIABLE } from "../environment.ts";

/** A process that is not a zombie, from /proc. */
interface LiveProcess {
  readonly pid: number;
  readonly group: number;
}

/**
 * Returns the processes of a job: those with its launcher's id in their environment, and those in one of `groups`.
 *
 * Zombies are omitted, although `kill(pid, 0)` succeeds for them. Without /proc the result is empty, and processes of
 * other users are not found by their environment. Process groups and the ranks' own protections end the ranks in these
 * cases.
 */
export function listJobPids(launcherId: string, groups: ReadonlySet<number> = new Set()): readonly number[] {
  const environmentEntry = Buffer.from(`${LAUNCHER_ID_VARIABLE}=${launcherId}\0`);
  return listLiveProcesses()
    .filter(({ pid }) => pid !== process.pid)
    .filter(({ pid, group }) => groups.has(group) || environmentContains(pid, environmentEntry))
    .map(({ pid }) => pid);
}

/** Sends a signal to a process, or with a negative id to its group. Returns false if no such process is left. */
export function sendSignal(pid: number, signal: NodeJS.Signals): boolean {
  try {
    return process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ESRCH") return false;
    // EPERM: the rank has changed its user and cannot be signalled. The other ranks must still be ended.
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

/**
 * Parses `pid (command) state ppid group …`. The command may contain spaces and parentheses, so the last `)` ends
 * it.
 */
function readStat(pid: number): LiveProcess | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, "latin1");
    const [state, , group] = text.slice(text.lastIndexOf(")") + 2).split(" ");
    return state === "Z" || state === "X" ? undefined : { pid, group: Number(group) };
  } catch {
    return undefined;
  }
}

/** Returns the initial environments of all processes whose environment this user may read. */
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
