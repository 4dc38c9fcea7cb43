import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { LAUNCHER_ID_VARIABLE } from "../environment.ts";

/**
 * Script of the guard, which outlives the launcher briefly. Its standard input ends when the launcher exits for any
 * reason. It then kills the registered process groups and all processes with the launcher's id in their environment,
 * and removes the job's private directory. It ends processes that do not exit with a rank: grandchildren in other
 * sessions, and ranks that are not Node.
 *
 * It is a shell script, because it must be small and independent of Node. It searches again after 0.1 s, because a rank
 * that was just being started may not have its environment in /proc yet.
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
    // A minimal environment: with the id of an outer launcher, the guard would be killed before it has finished.
    const env = { PATH: `${process.env.PATH ?? ""}:/usr/bin:/bin` };
    this.#process = spawn("/bin/sh", ["-c", GUARD_SCRIPT], {
      detached: true,
      env,
      stdio: ["pipe", "ignore", "ignore"],
    });
    // Without a shell, the ranks' other protections remain: the death signal and the parent pipe.
    this.#process.on("error", () => {});
    this.#process.stdin?.on("error", () => {});
    this.#process.unref();
    this.#send(`id ${launcherId}\ndir ${privateDir}\n`);
  }

  /** Registers a process group that must not outlive the launcher. */
  addGroup(group: number): void {
    this.#groups.add(group);
    this.#sendGroups();
  }

  /** Removes a group that no longer exists, because its number may be reused by another process. */
  removeGroup(group: number): void {
    this.#groups.delete(group);
    this.#sendGroups();
  }

  /** Ends the guard, when all registered processes have exited. */
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
