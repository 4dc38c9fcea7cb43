import { readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import type { Failure, LostNode } from "../src/job.ts";
import type { LaunchPlan } from "../src/launch-plan.ts";
import { RestartPolicy, type StopRequest } from "../src/restart-policy.ts";
import { INDEX, mosaicRun, type ProcessOutcome, program, run, testDir } from "./harness.ts";

const env = { TEST_INDEX: INDEX };
const job = (options: readonly string[], args: readonly string[]): Promise<ProcessOutcome> =>
  run(["-n", "2", "--restart-backoff", "1ms", ...options, program("restart.mjs"), ...args], { env });

describe("a job with --max-restarts", () => {
  it("is restarted with a new attempt number and an empty store until it succeeds", async () => {
    const outcome = await job(["--max-restarts", "3", "--min-uptime", "0"], ["0,1"]);
    expect(outcome.code).toBe(0);
    for (const attempt of [0, 1, 2]) {
      const prefix = `attempt ${attempt}, TORCHELASTIC_RESTART_COUNT ${attempt}, found `;
      const lines = outcome.stdout.split("\n").filter((line) => line.includes(prefix));
      expect(lines.length).toBeGreaterThan(0);
      for (const line of lines) expect(line).toMatch(new RegExp(`found (undefined|${attempt})$`));
    }
    expect(outcome.stdout).not.toContain("attempt 3");
    expect(outcome.stderr.match(/✖ rank \d/g)).toHaveLength(2);
    expect(outcome.stderr).toContain("restarting all ranks in 0.001 s (attempt 1)");
    expect(outcome.stderr).toContain("restarting all ranks in 0.002 s (attempt 2)");
  });

  it("has the first delay again after attempts that ran for --restart-reset", async () => {
    const outcome = await job(["--max-restarts", "3", "--min-uptime", "0", "--restart-reset", "1ms"], ["0,1,2"]);
    expect(outcome.code).toBe(0);
    const delays = outcome.stderr.match(/restarting all ranks in \S+ s/g);
    expect(delays).toEqual(Array(3).fill("restarting all ranks in 0.001 s"));
  });

  it("is restarted no more often than allowed", async () => {
    const outcome = await job(["--max-restarts", "1", "--min-uptime", "0", "--log-dir", "logs"], ["0,1,2"]);
    expect(outcome.code).toBe(3);
    expect(outcome.stderr.match(/✖ rank \d/g)).toHaveLength(2);
    expect(outcome.stderr).not.toContain("not restarted");
    const [runId] = readdirSync(join(testDir(), "logs"));
    expect(readdirSync(join(testDir(), "logs", runId ?? "")).toSorted()).toEqual(["attempt_0", "attempt_1"]);
  });

  it("continues without a log that cannot be written, and reports the log once", async () => {
    // The first attempt makes the second attempt's log a full device.
    const script = `
      import { mkdirSync, symlinkSync } from "node:fs";
      import { dirname } from "node:path";
      const directory = dirname(process.env.TORCHELASTIC_ERROR_FILE).replace("attempt_0", "attempt_1");
      if (process.env.TORCHELASTIC_RESTART_COUNT === "0") {
        mkdirSync(directory, { recursive: true });
        symlinkSync("/dev/full", directory + "/stdout.log");
        process.exit(1);
      }
      console.log("first");
      console.log("second");`;
    writeFileSync(join(testDir(), "full.mjs"), script);
    const options = ["-n", "1", "--restart-backoff", "1ms", "--max-restarts", "1", "--min-uptime", "0"];
    const outcome = await run([...options, "full.mjs"]);
    expect(outcome.code).toBe(0);
    expect(outcome.stdout).toContain("first");
    expect(outcome.stdout).toContain("second");
    const warnings = outcome.stderr.split("\n").filter((line) => line.includes("cannot be written"));
    expect(warnings).toEqual([
      expect.stringMatching(
        /^mosaic-run: .*attempt_1\/0\/stdout\.log cannot be written: ENOSPC: .*; the log is incomplete from here on/,
      ),
    ]);
    const { stdout: jsonOutput } = await run(["--json", ...options, "full.mjs"]);
    const events = jsonOutput.split("\n").filter((line) => line.includes('"event":"log-failed"'));
    expect(events.map((line) => JSON.parse(line) as object)).toEqual([
      expect.objectContaining({ rank: 0, attempt: 1, log: expect.stringContaining("stdout.log") }),
    ]);
  });

  it("is not restarted after two consecutive failures within --min-uptime", async () => {
    const outcome = await job(["--max-restarts", "5"], ["0,1,2,3"]);
    expect(outcome.stderr.match(/✖ rank \d/g)).toHaveLength(2);
    expect(outcome.stderr).toContain(
      "not restarted: two consecutive failures, each within 10 s of the start (--min-uptime)",
    );
    expect(outcome.code).toBe(3);
  });

  it("is not restarted when a rank exits with EX_CONFIG", async () => {
    const outcome = await job(["--max-restarts", "5"], ["0,1", "78"]);
    expect(outcome.stderr).toContain("not restarted: exit code 78 (EX_CONFIG) is not retried");
    expect(outcome.stderr.match(/✖ rank \d/g)).toHaveLength(1);
    expect(outcome.code).toBe(78);
  });

  it("is not restarted after SIGTERM during the delay before the restart", async () => {
    const options = ["-n", "2", "--restart-backoff", "30s", "--max-restarts", "5", program("restart.mjs"), "0"];
    const waitingJob = mosaicRun(options, { env });
    await waitingJob.waitForOutput("restarting all ranks in 30 s (attempt 1)");
    waitingJob.child.kill("SIGTERM");
    const outcome = await waitingJob.outcome;
    expect(outcome.code).toBe(143);
    expect(outcome.stdout).not.toContain("attempt 1");
  });
});

describe("the restart policy", () => {
  const plan = {
    ...{ maxRestarts: 9, restartBackoffMs: 1000, restartResetMs: 600_000, minUptimeMs: 10_000 },
  } as LaunchPlan;
  const createFailure = (code: number | null, signal: NodeJS.Signals | null): Failure => ({
    ...{ attempt: 0, node: "n0", rank: 0, local: 0, pid: 1, afterMs: 1, exitCode: code ?? 128, stderrTail: [] },
    ...{ code, signal, log: "", stopped: [], secondary: [] },
  });
  const failure = createFailure(1, null);
  const stop: StopRequest = { reason: "SIGTERM", signal: "SIGTERM", outcome: "cancelled" };

  it("counts only consecutive failures within --min-uptime", () => {
    const policy = new RestartPolicy(plan);
    const decide = (attempt: number, uptimeMs: number) =>
      policy.decide({ attempt, uptimeMs, failure, stop: undefined });
    expect(decide(0, 9_999)).toEqual({ failure, restartInMs: 1000 });
    expect(decide(1, 10_000)).toEqual({ failure, restartInMs: 2000 });
    expect(decide(2, 0)).toEqual({ failure, restartInMs: 4000 });
    expect(decide(3, 9_999)).toEqual({
      failure: { ...failure, noRestartReason: expect.stringMatching(/two consecutive failures, each within 10 s/) },
    });
  });

  it("does not count failures as consecutive if an attempt that a lost node ended ran longer in between", () => {
    const lost: LostNode = { attempt: 1, nodeRank: 1, node: "n1", reason: "connection closed", afterMs: 20_000 };
    const decide = (uptimeMs: number) => {
      const policy = new RestartPolicy(plan);
      policy.decide({ attempt: 0, uptimeMs: 0, failure, stop: undefined });
      policy.decide({ attempt: 1, uptimeMs, failure: undefined, lost, stop: undefined });
      return policy.decide({ attempt: 2, uptimeMs: 0, failure, stop: undefined });
    };
    expect(decide(10_000)).toEqual({ failure, restartInMs: 4000 });
    expect(decide(9_999).failure?.noRestartReason).toMatch(/two consecutive failures/);
  });

  it("restarts without a delay after any number of attempts if there is no backoff", () => {
    const policy = new RestartPolicy({ ...plan, maxRestarts: 5000, restartBackoffMs: 0 });
    expect(policy.decide({ attempt: 2000, uptimeMs: 60_000, failure, stop: undefined }).restartInMs).toBe(0);
    const slowPolicy = new RestartPolicy({ ...plan, maxRestarts: 5000, restartBackoffMs: 1 });
    expect(slowPolicy.decide({ attempt: 2000, uptimeMs: 60_000, failure, stop: undefined }).restartInMs).toBe(30_000);
  });

  it("limits the delay to 30 s, and the restarts to --max-restarts", () => {
    const decide = (attempt: number) =>
      new RestartPolicy(plan).decide({ attempt, uptimeMs: 60_000, failure, stop: undefined });
    expect([4, 5, 8].map((attempt) => decide(attempt).restartInMs)).toEqual([16_000, 30_000, 30_000]);
    expect(decide(9)).toEqual({ failure });
  });

  it("begins with the first delay again after an attempt that ran for --restart-reset", () => {
    const policy = new RestartPolicy(plan);
    const decide = (attempt: number, uptimeMs: number, lost?: LostNode) =>
      policy.decide({ attempt, uptimeMs, failure: lost ? undefined : failure, lost, stop: undefined }).restartInMs;
    expect([decide(0, 60_000), decide(1, 60_000), decide(2, 599_999)]).toEqual([1000, 2000, 4000]);
    expect([decide(3, 600_000), decide(4, 60_000), decide(5, 60_000)]).toEqual([1000, 2000, 4000]);
    const lost: LostNode = { attempt: 6, nodeRank: 1, node: "n1", reason: "connection closed", afterMs: 600_000 };
    expect([decide(6, 600_000, lost), decide(7, 60_000)]).toEqual([1000, 2000]);
    // The number of restarts is not reset.
    expect(decide(9, 600_000)).toBe(undefined);
  });

  it("treats ranks that the signal of a stopped job has ended as stopped, and all others as failed", () => {
    const decide = (failed: Failure | undefined, stopped: StopRequest | undefined) =>
      new RestartPolicy(plan).decide({ attempt: 0, uptimeMs: 60_000, failure: failed, stop: stopped });
    const [terminated, killed] = [createFailure(null, "SIGTERM"), createFailure(null, "SIGKILL")];
    expect(decide(undefined, undefined)).toEqual({});
    expect(decide(undefined, stop)).toEqual({ stop });
    expect(decide(terminated, stop)).toEqual({ stop });
    expect(decide(killed, stop)).toEqual({ failure: killed });
    expect(decide(failure, stop)).toEqual({ failure });
    expect(decide(terminated, undefined)).toEqual({ failure: terminated, restartInMs: 1000 });
  });
});
