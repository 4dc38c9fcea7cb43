import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

/** A line of JSON that a rank printed. */
export interface Said {
  readonly event: string;
  readonly rank: number;
  readonly [detail: string]: unknown;
}

/** A rank in its own process. */
export interface RankProcess {
  readonly pid: number;
  /** Resolves with the first thing it says of this kind; rejects if it ends without. */
  said(event: string): Promise<Said>;
  /** Lets the odd rank do what it is there for. */
  tell(): void;
  kill(): void;
  /** Its exit code, or the signal that ended it. */
  readonly ended: Promise<number | string>;
}

/**
 * Starts a rank as a process of its own: `script` plays the scenario, and says what happens as lines of JSON with the name
 * of an event each. `env` is added to this process's environment.
 */
export function startRank(script: string, scenario: string, env: Readonly<Record<string, string>>): RankProcess {
  const child = spawn(process.execPath, [script, scenario], {
    env: { ...process.env, ...env },
    stdio: ["pipe", "pipe", "inherit"],
  });
  const heard: Said[] = [];
  const listeners = new Set<() => void>();
  createInterface(child.stdout).on("line", (line) => {
    heard.push(JSON.parse(line) as Said);
    for (const listener of listeners) listener();
  });
  const ended = once(child, "close").then(([code, signal]) => (code as number | null) ?? (signal as string));
  return {
    pid: child.pid!,
    ended,
    tell: () => child.stdin.write("go\n"),
    kill: () => child.kill("SIGKILL"),
    said(event) {
      return new Promise((resolve, reject) => {
        const look = () => {
          const found = heard.find((each) => each.event === event);
          if (found) resolve(found);
        };
        listeners.add(look);
        look();
        void ended.then((code) => {
          look();
          reject(new Error(`${scenario}: ended with ${code} before "${event}"; said ${JSON.stringify(heard)}`));
        });
      });
    },
  };
}
