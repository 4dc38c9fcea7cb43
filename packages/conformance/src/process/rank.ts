import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

/** A line of JSON that a rank printed. */
export interface RankEvent {
  readonly event: string;
  readonly rank: number;
  readonly [detail: string]: unknown;
}

/** A rank in its own process. */
export interface RankProcess {
  readonly pid: number;
  /** Resolves with the first event of this name; rejects if the rank ends without one. */
  waitForEvent(event: string): Promise<RankEvent>;
  /** Writes the line that the odd rank waits for. */
  proceed(): void;
  kill(): void;
  /** Its exit code, or the signal that ended it. */
  readonly ended: Promise<number | string>;
}

/**
 * Starts a rank as a process of its own: `script` runs the scenario and prints events as lines of JSON. `env` is added to this process's environment.
 */
export function startRank(script: string, scenario: string, env: Readonly<Record<string, string>>): RankProcess {
  const child = spawn(process.execPath, [script, scenario], {
    env: { ...process.env, ...env },
    stdio: ["pipe", "pipe", "inherit"],
  });
  const events: RankEvent[] = [];
  const listeners = new Set<() => void>();
  createInterface(child.stdout).on("line", (line) => {
    events.push(JSON.parse(line) as RankEvent);
    for (const listener of listeners) listener();
  });
  const ended = once(child, "close").then(([code, signal]) => (code as number | null) ?? (signal as string));
  return {
    pid: child.pid!,
    ended,
    proceed: () => child.stdin.write("go\n"),
    kill: () => child.kill("SIGKILL"),
    waitForEvent(event) {
      return new Promise((resolve, reject) => {
        const check = () => {
          const found = events.find((each) => each.event === event);
          if (found) resolve(found);
        };
        listeners.add(check);
        check();
        void ended.then((code) => {
          check();
          reject(new Error(`${scenario}: ended with ${code} before "${event}"; received ${JSON.stringify(events)}`));
        });
      });
    },
  };
}
