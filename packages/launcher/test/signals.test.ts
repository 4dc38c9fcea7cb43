import { existsSync, readdirSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import {
  CLI,
  listChildren,
  readCommand,
  isAlive,
  listLivingProcesses,
  mosaicRun,
  program,
  type RunningProcess,
  runNode,
  temporaryDir,
  waitUntil,
} from "./harness.ts";

const numRepeats = Number(process.env.MOSAIC_TEST_REPEAT ?? 1) - 1;

/** Starts three ranks that wait, and resolves when all are ready. */
async function startWaiting(mode: string, ...options: string[]): Promise<RunningProcess> {
  const job = mosaicRun(["-n", "3", ...options, program("wait.mjs"), mode]);
  await job.waitForOutput("is ready", 3);
  return job;
}

describe("a signal to the launcher", { repeats: numRepeats }, () => {
  it.each(["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"] as const)(
    "ends the ranks with the same signal: %s",
    async (signal) => {
      const job = await startWaiting("simply");
      job.child.kill(signal);
      const outcome = await job.outcome;
      const code = { SIGTERM: 143, SIGINT: 130, SIGHUP: 129, SIGQUIT: 131 }[signal];
      expect(outcome.stderr).toContain(`mosaic-run: ${signal}: sent ${signal} to ranks 0,1,2`);
      expect(outcome.stderr).toMatch(new RegExp(`cancelled; logs \\S+ {3}exit code ${code}\n$`));
      expect(outcome.stderr).not.toContain("✖");
      expect(outcome.code).toBe(code);
    },
  );

  it("gives every rank the grace period, and its output during that period is kept", async () => {
    const job = await startWaiting("saves-and-ends");
    job.child.kill("SIGTERM");
    const outcome = await job.outcome;
    for (const rank of [0, 1, 2]) expect(outcome.stdout).toContain(`[${rank}] rank ${rank} saved\n`);
    expect(outcome.code).toBe(143);
  });

  it("kills the remaining ranks at the end of the grace period", async () => {
    const job = await startWaiting("stubborn", "--grace", "100ms");
    job.child.kill("SIGTERM");
    const outcome = await job.outcome;
    expect(outcome.stderr).toContain("still running after 0.1 s: killing ranks 0,1,2");
    expect(outcome.code).toBe(143);
  });

  it("kills the ranks at the second Ctrl-C", async () => {
    const job = await startWaiting("stubborn");
    job.child.kill("SIGINT");
    await job.waitForOutput("SIGINT\n", 3);
    job.child.kill("SIGINT");
    const outcome = await job.outcome;
    expect(outcome.stderr).toContain("interrupted again: killing ranks 0,1,2");
    expect(outcome.code).toBe(130);
  });

  it.each([
    ["SIGTERM", "SIGTERM"],
    ["SIGTERM", "SIGHUP"],
    ["SIGINT", "SIGTERM"],
  ] as const)("ends the grace period when %s is followed by %s", async (firstSignal, secondSignal) => {
    const job = await startWaiting("stubborn");
    job.child.kill(firstSignal);
    await job.waitForOutput(`${firstSignal}\n`, 3);
    await delay(600);
    job.child.kill(secondSignal);
    const outcome = await job.outcome;
    expect(outcome.stderr).toContain(`mosaic-run: ${secondSignal} during the grace period: killing ranks 0,1,2`);
    expect(outcome.code).toBe({ SIGTERM: 143, SIGINT: 130 }[firstSignal]);
    expect(outcome.ms).toBeLessThan(20_000);
  });

  it("ends the grace period that follows a timeout", async () => {
    const job = await startWaiting("stubborn", "--timeout", "2s");
    await job.waitForOutput("SIGTERM\n", 3);
    job.child.kill("SIGTERM");
    const outcome = await job.outcome;
    expect(outcome.stderr).toContain("SIGTERM during the grace period: killing ranks 0,1,2");
    expect(outcome.code).toBe(124);
  });

  it("is ignored right after another one, unless it is Ctrl-C", async () => {
    const job = await startWaiting("stubborn");
    job.child.kill("SIGTERM");
    await job.waitForOutput("SIGTERM\n", 3);
    job.child.kill("SIGTERM");
    job.child.kill("SIGHUP");
    job.child.kill("SIGINT");
    const outcome = await job.outcome;
    expect(outcome.stderr).toContain("interrupted again");
    expect(outcome.stderr).not.toContain("during the grace");
    expect(outcome.code).toBe(143);
  });

  it("is forwarded without any other effect if it is SIGUSR2", async () => {
    const job = await startWaiting("checkpoints-on-usr2");
    job.child.kill("SIGUSR2");
    await job.waitForOutput("checkpoint", 3);
    job.child.kill("SIGUSR2");
    await job.waitForOutput("checkpoint", 6);
    job.child.kill("SIGTERM");
    expect((await job.outcome).code).toBe(143);
  });

  it("reaches each rank once in a SLURM step if SLURM sends it to all processes", async () => {
    const env = { SLURM_JOB_ID: "1", SLURM_STEP_ID: "0" };
    const job = mosaicRun(["-n", "2", program("wait.mjs"), "checkpoints-on-usr2"], { env });
    await job.waitForOutput("is ready", 2);
    const countCheckpoints = (): number => job.output().split("checkpoint").length - 1;
    const signal = (): void => [job.pid, ...listChildren(job.pid)].forEach((pid) => process.kill(pid, "SIGUSR2"));
    for (const expected of [2, 4]) {
      signal();
      await job.waitForOutput("checkpoint", expected);
      // Longer than the launcher waits for its signal probe, which has been restarted by then.
      await delay(400);
      expect(countCheckpoints()).toBe(expected);
    }
    // Only the launcher is signalled, as if SLURM tracks process groups. It forwards the signal.
    job.child.kill("SIGUSR2");
    await job.waitForOutput("checkpoint", 6);
    job.child.kill("SIGTERM");
    expect((await job.outcome).code).toBe(143);
  });

  it("does not end the grace period in a SLURM step if it is SIGTERM", async () => {
    const env = { SLURM_JOB_ID: "1", SLURM_STEP_ID: "0" };
    const job = mosaicRun(["-n", "1", "--grace=1500ms", program("wait.mjs"), "stubborn"], { env });
    await job.waitForOutput("is ready");
    for (const pause of [600, 600, 0]) {
      job.child.kill("SIGTERM");
      await delay(pause);
    }
    expect((await job.outcome).stderr).toContain("still running after 1.5 s: killing rank 0");
    expect(job.output()).not.toContain("during the grace");
  });

  it("ends children of ranks in and outside their process group", async () => {
    const job = await startWaiting("has-children");
    await waitUntil(
      () => listLivingProcesses().length === 10,
      () => `${listLivingProcesses().length} processes`,
    );
    job.child.kill("SIGTERM");
    expect((await job.outcome).code).toBe(143);
  });
});

describe("SIGTERM to npm, which signals only its shell,", () => {
  /** Starts a job as npm runs a command: in a shell that waits for it. */
  function startInShell(env: Readonly<Record<string, string>>): RunningProcess {
    const spawnCode = 'require("node:child_process").spawn("sh", process.argv.slice(1), { stdio: "inherit" })';
    const script = `console.log("shell", ${spawnCode}.pid)`;
    const line = '"$@"; exit $?';
    const command = [process.execPath, CLI, "-n", "2", program("wait.mjs"), "saves-and-ends"];
    return runNode(["-e", script, "--", "-c", line, "sh", ...command], { env });
  }

  const findShellPid = (job: RunningProcess): number => Number(/shell (\d+)/.exec(job.output())?.[1]);

  it("ends the job with a grace period for the ranks", async () => {
    const job = startInShell({ npm_config_user_agent: "npm/11.19.1 node/v20" });
    await job.waitForOutput("is ready", 2);
    process.kill(findShellPid(job), "SIGTERM");
    const { stdout, stderr } = await job.outcome;
    expect(stderr).toContain("mosaic-run: SIGTERM: sent SIGTERM to ranks 0,1");
    for (const rank of [0, 1]) expect(stdout).toContain(`[${rank}] rank ${rank} saved\n`);
    await waitUntil(
      () => listLivingProcesses().length === 0,
      () => `still there: ${listLivingProcesses().join(" ")}`,
    );
  });
});

describe("SIGKILL of the launcher", { repeats: numRepeats }, () => {
  /** Returns the pid of the guard, a child of the launcher without the job's mark that runs the guard's script. */
  const listGuardPids = (job: RunningProcess): number[] =>
    listChildren(job.pid).filter((pid) => !listLivingProcesses().includes(pid) && readCommand(pid).includes("trap"));

  async function killLauncher(job: RunningProcess): Promise<void> {
    const guardPids = listGuardPids(job);
    job.child.kill("SIGKILL");
    const start = performance.now();
    await waitUntil(
      () => listLivingProcesses().length === 0,
      () => `still there: ${listLivingProcesses().join(" ")}`,
      1000,
    );
    expect(performance.now() - start).toBeLessThan(1000);
    await waitUntil(
      () => !guardPids.some(isAlive),
      () => "the guard is still there",
    );
  }

  it("leaves no process of ranks that wait", async () => {
    const job = await startWaiting("simply");
    expect(listGuardPids(job)).toHaveLength(1);
    await killLauncher(job);
  });

  it("leaves no process of ranks that ignore all signals that can be ignored", async () => {
    await killLauncher(await startWaiting("stubborn"));
  });

  it("leaves no process of ranks whose main thread is blocked", async () => {
    await killLauncher(await startWaiting("blocked"));
  });

  it("leaves no process of ranks that watch the launcher themselves, without a death signal or a guard", async () => {
    const job = mosaicRun(["-n", "2", program("wait.mjs"), "blocked"], { env: { PATH: "/nonexistent" } });
    await job.waitForOutput("is ready", 2);
    for (const pid of listGuardPids(job)) process.kill(pid, "SIGKILL");
    await killLauncher(job);
    // No process is left to remove the private directory, but only its owner can read it.
    const [leftDirectory = "none"] = readdirSync(temporaryDir()).filter((name) => name.startsWith("mosaic-run-"));
    expect(statSync(join(temporaryDir(), leftDirectory)).mode & 0o777).toBe(0o700);
    expect(statSync(join(temporaryDir(), leftDirectory, "token")).mode & 0o777).toBe(0o600);
    rmSync(join(temporaryDir(), leftDirectory), { recursive: true });
  });

  it("leaves no process of a program that clears its environment, which only the guard ends", async () => {
    const job = mosaicRun(["-n", "2", "--exec", "env", "-i", "sh", "-c", "echo $$ is ready; sleep 600; true"]);
    await job.waitForOutput("is ready", 2);
    const pids = [...job.output().matchAll(/(\d+) is ready/g)].map((match) => Number(match[1]));
    const allPids = [...pids, ...pids.flatMap(listChildren)];
    await killLauncher(job);
    await waitUntil(
      () => !allPids.some(isAlive),
      () => `still there: ${allPids.join(" ")}`,
      1000,
    );
  });

  it("leaves no process of ranks with children in and outside their process group", async () => {
    const job = await startWaiting("has-children");
    await waitUntil(
      () => listLivingProcesses().length === 10,
      () => `${listLivingProcesses().length} processes`,
    );
    await killLauncher(job);
  });

  it("leaves no process of programs other than Node", async () => {
    const job = mosaicRun(["-n", "2", "--exec", "sh", "-c", "sleep 600 & echo $! is ready; wait"]);
    await job.waitForOutput("is ready", 2);
    await killLauncher(job);
  });
});

describe("a timeout", () => {
  it.each(["0", "0s", "0ms", "off"])("of %s is disabled", async (time) => {
    const outcome = await mosaicRun(["-n", "1", "--timeout", time, "--exec", "sleep", "0.1"]).outcome;
    expect(outcome).toMatchObject({ code: 0, stderr: "" });
  });

  it("ends the job with exit code 124", async () => {
    const outcome = await mosaicRun(["-n", "2", "--timeout", "300ms", program("wait.mjs")]).outcome;
    expect(outcome.stderr).toContain("timeout of 0.3 s: sent SIGTERM to ranks 0,1");
    expect(outcome.code).toBe(124);
    const logs = /timed out; logs (\S+)/.exec(outcome.stderr)?.[1] ?? "";
    expect(existsSync(`${logs}/attempt_0/1/stdout.log`)).toBe(true);
  });
});
