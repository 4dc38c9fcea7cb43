import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { StoreServer } from "@mosaic/launcher";
import { build } from "tsup";
import "./emulated.ts";

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

// Plain JavaScript, beside the prebuilt addons as dist/ is: processes start faster without a loader each.
const outDir = fileURLToPath(new URL("../build/", import.meta.url));
const entry = { rank: fileURLToPath(new URL("fixtures/rank.ts", import.meta.url)) };
await build({ entry, outDir, format: "esm", target: "node20", external: [/^@mosaic\//], config: false, silent: true });
/** What each rank runs. */
export const script: string = `${outDir}rank.js`;

export function startRank(scenario: string, env: Readonly<Record<string, string>>): RankProcess {
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

/** A job's store, and what a launcher would put into the environment of its ranks. */
export interface Job extends AsyncDisposable {
  env(rank: number): Readonly<Record<string, string>>;
}

let jobs = 0;

export async function openJob(size: number, more: Readonly<Record<string, string>> = {}): Promise<Job> {
  const runId = `test-${process.pid}-${jobs++}`;
  const store = await StoreServer.listen({ runId });
  const tokenFile = join(mkdtempSync(join(tmpdir(), "mosaic-nccl-")), "token");
  writeFileSync(tokenFile, `${store.token}\n`);
  return {
    env: (rank) => ({
      RANK: String(rank),
      LOCAL_RANK: String(rank),
      WORLD_SIZE: String(size),
      LOCAL_WORLD_SIZE: String(size),
      MOSAIC_STORE: store.address,
      MOSAIC_TOKEN_FILE: tokenFile,
      MOSAIC_RUN_ID: runId,
      MOSAIC_ATTEMPT: "0",
      MOSAIC_NODE_ADDR: store.host,
      ...more,
    }),
    [Symbol.asyncDispose]: () => store.close(),
  };
}
