import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { LAUNCHER_ID_VARIABLE } from "../environment.ts";

/**
 * Outlives the launcher by a moment. When its standard input ends, which is the launcher's death however it came, it
 * kills the groups that were registered and every process that carries the launcher's id, until none is left, and removes the job's
 * private directory. It catches what dies with no rank: grandchildren in sessions of their own, ranks that are not Node.
 *
 * A shell, because it must be small and must not share Node's fate. It looks again after 0.1 s for a rank that was being
 * born: such a one is not yet in /proc under its name.
 */
const GUARD_SCRIPT = `
trap '' HUP INT TERM QUIT USR1 USR2
groups= id= dir=
while read -r word value; do
  case $word in id) id=$value ;; dir) dir=$value ;; groups) groups=$value ;; esac
done
[ -n "$groups" ] && kill -s KILL -- $groups
[ -d /proc/self ] && for pause in 0 0.1 0 0 0; do
  sleep $pause
  found=$(grep -Fls -- "${LAUNCHER_ID_VARIABLE}=$id" /proc/[0-9]*/environ)
  for file in $found; do pid=\${file#/proc/}; kill -9 "\${pid%/environ}"; done
done
[ -n "$dir" ] && rm -rf -- "$dir"
`;

/** The process that ends a job whose launcher was killed. */
export class OrphanGuard {
  readonly #process: ChildProcess;
  readonly #groups = new Set<number>();

  constructor(launcherId: string, privateDir: string) {
    // An environment of its own: a guard that carried an outer launcher's id would be killed before it did its work.
    const env = { PATH: `${process.env.PATH ?? ""}:/usr/bin:/bin` };
    this.#process = spawn("/bin/sh", ["-c", GUARD_SCRIPT], {
      detached: true,
      env,
      stdio: ["pipe", "ignore", "ignore"],
    });
    // Without a shell, the ranks' own layers remain: the death signal and the parent pipe.
    this.#process.on("error", () => {});
    this.#process.stdin?.on("error", () => {});
    this.#process.unref();
    this.#send(`id ${launcherId}\ndir ${privateDir}\n`);
  }

  /** Adds a process group to what must not survive the launcher. */
  addGroup(group: number): void {
    this.#groups.add(group);
    this.#sendGroups();
  }

  /** Removes a group that is gone: its number may be reused by another process. */
  removeGroup(group: number): void {
    this.#groups.delete(group);
    this.#sendGroups();
  }

  /** Ends the guard itself, when there is nothing left to guard. */
  async close(): Promise<void> {
    if (this.#process.pid === undefined || this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const exitEvent = once(this.#process, "exit");
    this.#process.ref();
    this.#process.kill("SIGKILL");
    await exitEvent;
  }

  #sendGroups(): void {
    this.#send(`groups ${[...this.#groups].map((group) => -group).join(" ")}\n`);
  }

  #send(text: string): void {
    this.#process.stdin?.write(text);
  }
}
