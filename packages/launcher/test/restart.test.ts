import { readdirSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
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

  it("is restarted no more often than allowed", async () => {
    const outcome = await job(["--max-restarts", "1", "--min-uptime", "0", "--log-dir", "logs"], ["0,1,2"]);
    expect(outcome.code).toBe(3);
    expect(outcome.stderr.match(/✖ rank \d/g)).toHaveLength(2);
    expect(outcome.stderr).not.toContain("not restarted");
    const [runId] = readdirSync(join(testDir(), "logs"));
    expect(readdirSync(join(testDir(), "logs", runId ?? "")).toSorted()).toEqual(["attempt_0", "attempt_1"]);
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
