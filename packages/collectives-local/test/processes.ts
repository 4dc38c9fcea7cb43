import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { build } from "tsup";

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

// Plain JavaScript, beside the prebuilt addons as dist/ is: eight processes start faster without a loader each.
const outDir = fileURLToPath(new URL("../build/", import.meta.url));
const entry = { rank: fileURLToPath(new URL("fixtures/rank.ts", import.meta.url)) };
await build({ entry, outDir, format: "esm", target: "node20", config: false, silent: true });
const script = `${outDir}rank.js`;

export function startRank(scenario: string, env: Record<string, string>): RankProcess {
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

let jobs = 0;

/** What a launcher would set for the ranks of one job. */
export function job(size: number, more: Record<string, string> = {}): (rank: number) => Record<string, string> {
  const run = `test-${process.pid}-${jobs++}`;
  return (rank) => ({
    RANK: String(rank),
    WORLD_SIZE: String(size),
    LOCAL_WORLD_SIZE: String(size),
    MASTER_ADDR: "127.0.0.1",
    MASTER_PORT: "29500",
    MOSAIC_RUN_ID: run,
    MOSAIC_ATTEMPT: "0",
    ...more,
  });
}

export function startRanks(size: number, scenario: string, more: Record<string, string> = {}): RankProcess[] {
  const env = job(size, more);
  return Array.from({ length: size }, (_, rank) => startRank(scenario, env(rank)));
}
