import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import type { HeldResources } from "./leftovers.ts";

const launcher = join(dirname(createRequire(import.meta.url).resolve("@mosaic/launcher/package.json")), "dist/cli.js");

/** The result of a run under mosaic-run. */
export interface RunResult extends HeldResources {
  /** A marker in the environment of the launcher and of every rank. */
  readonly mark: string;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** Interleaved stdout and stderr. */
  readonly output: string;
  /** Time from the start of the fault to the exit of the launcher, in milliseconds. */
  readonly durationMs: number;
}

export interface RunOptions {
  readonly ranks: number;
  readonly entry?: string;
  readonly args?: readonly string[];
  /** Whether to kill the launcher once all ranks have reported the start of the fault. */
  readonly killLauncher?: boolean;
}

/** Runs ranks with an injected fault as real processes under mosaic-run, and waits for the launcher to exit. */
export async function runRanks({ ranks, entry, args = [], killLauncher = false }: RunOptions): Promise<RunResult> {
  const mark = `mosaic-test-${randomUUID()}`;
  const program = entry ?? fileURLToPath(new URL("./rank.mjs", import.meta.url));
  const child = spawn(process.execPath, [launcher, "--nproc-per-node", String(ranks), program, ...args], {
    env: { ...process.env, MOSAIC_TEST_MARK: mark, MOSAIC_THREADS: "1" },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let output = "";
  const collectOutput = (data: string): void => {
    output += data;
    if (killLauncher && parseReports(output).length === ranks) child.kill("SIGKILL");
  };
  child.stdout.setEncoding("utf8").on("data", collectOutput);
  child.stderr.setEncoding("utf8").on("data", collectOutput);
  const { code, signal } = await new Promise<Pick<RunResult, "code" | "signal">>((resolve) => {
    child.on("exit", (code, signal) => resolve({ code, signal }));
  });
  const end = Date.now();
  const rankReports = parseReports(output);
  return {
    mark,
    code,
    signal,
    output,
    durationMs: end - Math.min(...rankReports.map(({ at }) => at)),
    sockets: rankReports.flatMap(({ sockets }) => sockets),
    segments: rankReports.flatMap(({ segments }) => segments),
  };
}

function parseReports(output: string): readonly (HeldResources & { readonly at: number })[] {
  return [...output.matchAll(/\{"at":.*\}/g)].map(([json]) => JSON.parse(json) as HeldResources & { at: number });
}
