import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, expect, test } from "vitest";

const resolveLauncher = (name: string): string =>
  fileURLToPath(new URL(`../../launcher/bin/${name}.js`, import.meta.url));
const program = fileURLToPath(new URL("top/steps.mjs", import.meta.url));
const SLOW_RANK = 1;

/** The output of `mosaic-top --json`. */
interface TopSample {
  readonly job: string;
  readonly worlds: readonly {
    readonly size: number;
    readonly slowestRank: number | null;
    readonly ranks: readonly Record<string, number | string | null>[];
  }[];
}

let job: ChildProcess;
let id = "";
let logs = "";

/** Starts three ranks, one of which is 20 ms slower in each step. */
beforeEach(async () => {
  const { MOSAIC_AGENT: _, ...inheritedEnv } = process.env;
  logs = mkdtempSync(join(tmpdir(), "mosaic-top-"));
  const args = [
    resolveLauncher("mosaic-run"),
    "-n",
    "3",
    "--console-ranks",
    "0",
    "--log-prefix",
    "",
    "--log-dir",
    logs,
  ];
  job = spawn(process.execPath, [...args, program, `${SLOW_RANK}`], {
    env: { ...inheritedEnv, MOSAIC_THREADS: "1" },
    stdio: ["ignore", "pipe", "inherit"],
  });
  for await (const line of createInterface({ input: job.stdout! })) {
    id = /^running (\S+)$/.exec(line)?.[1] ?? "";
    if (id !== "") break;
  }
  expect(id).not.toBe("");
});

afterEach(async () => {
  if (job.exitCode === null && job.signalCode === null) {
    const closed = new Promise((resolve) => job.once("close", resolve));
    job.kill("SIGTERM");
    await closed;
  }
  rmSync(logs, { recursive: true, force: true });
});

interface TopProcess {
  readonly child: ChildProcess;
  readonly outcome: Promise<{ readonly code: number | null; readonly stdout: string; readonly stderr: string }>;
}

function startTop(...args: readonly string[]): TopProcess {
  const child = spawn(process.execPath, [resolveLauncher("mosaic-top"), ...args], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  let [stdout, stderr] = ["", ""];
  child.stdout.setEncoding("utf8").on("data", (text: string) => (stdout += text));
  child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text));
  const outcome = new Promise<Awaited<TopProcess["outcome"]>>((resolve) =>
    child.once("close", (code) => resolve({ code, stdout, stderr })),
  );
  return { child, outcome };
}

test("the first sample names the slowest rank and has measurements of every rank", async () => {
  const { code, stdout, stderr } = await startTop(id, "--json", "--once", "--interval", "500ms").outcome;
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  const sample = JSON.parse(stdout) as TopSample;
  expect(sample.job).toBe(id);
  expect(sample.worlds).toMatchObject([{ size: 3, slowestRank: SLOW_RANK }]);
  const ranks = sample.worlds[0]!.ranks;
  expect(ranks.map(({ rank }) => rank)).toEqual([0, 1, 2]);
  for (const rank of ranks) {
    expect(rank.stepMs).toBeGreaterThanOrEqual(20);
    expect(rank.steps).toBeGreaterThan(1);
    for (const name of ["sentBytesPerSecond", "residentBytes", "deviceBytes"]) expect(rank[name]).toBeGreaterThan(0);
    expect(`${rank.operation}${rank.lastOperation}`).toContain("allReduce");
  }
  // A table without colors, with the job given by a prefix of its id.
  const table = await startTop(id.slice(0, 6), "--once", "--interval=300ms", "--color", "never").outcome;
  expect(table.stdout).toMatch(/RANK .*WAITING.*POSITION\n +0 .*\n +1 .*\n +2 .*\nslowest: rank 1; it waits \d+ %/);
  expect(table.stdout).not.toContain("\u001b");
});

test("--prometheus serves the samples over HTTP, and the command ends with the job", async () => {
  const topProcess = startTop("--prometheus", "0", "--json", "--interval", "200ms", id);
  let url = "";
  for await (const line of createInterface({ input: topProcess.child.stderr! })) {
    url = /(http:\S+)$/.exec(line)?.[1] ?? "";
    break;
  }
  // A printed sample is also available over HTTP.
  for await (const _ of createInterface({ input: topProcess.child.stdout! })) break;
  const text = await (await fetch(url)).text();
  expect(text).toMatch(new RegExp(`mosaic_slowest_rank\\{job_id="${id}".*\\} ${SLOW_RANK}\n`));
  for (const name of ["step_seconds", "waiting_ratio", "up"])
    expect(text).toMatch(new RegExp(`\nmosaic_rank_${name}\\{.*rank="2".*\\} [\\d.e-]+\n`));
  job.kill("SIGTERM");
  expect(await topProcess.outcome).toMatchObject({ code: 0 });
});
