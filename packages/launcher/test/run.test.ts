import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import {
  CLI,
  INDEX,
  listLivingProcesses,
  mosaicRun,
  type ProcessOutcome,
  program,
  run,
  runNode,
  temporaryDir,
  testDir,
  waitUntil,
} from "./harness.ts";

const env = { TEST_INDEX: INDEX };
const PACKAGE = join(import.meta.dirname, "..");

interface RankContract {
  readonly environment: Readonly<Record<string, string>>;
  readonly arrived: number;
  readonly args: readonly string[];
  readonly execArgv: readonly string[];
  readonly cwd: string;
}

async function runContract(
  args: readonly string[],
  start: Readonly<Record<string, string>> = {},
): Promise<RankContract[]> {
  const { stdout, stderr, code } = await run([...args, program("contract.mjs"), "-n", "9", "--json", "--", "x"], {
    env: { ...env, ...start },
  });
  expect({ stderr, code }).toEqual({ stderr: "", code: 0 });
  const lines = stdout.trim().split("\n").toSorted();
  return lines.map((line) => JSON.parse(line.replace(/^\[\d+\] /, "")) as RankContract);
}

describe("the environment of a rank", () => {
  it("identifies rank, job and store, whatever variables are inherited", async () => {
    const inherited = { RANK: "77", WORLD_SIZE: "99", MOSAIC_ATTEMPT: "5", MASTER_ADDR: "elsewhere" };
    const ranks = await runContract(["-n", "3", "--role", "trainer", "--max-restarts", "2"], inherited);
    const { environment: firstEnvironment } = ranks[0] as RankContract;
    for (const [rank, { environment, args }] of ranks.entries()) {
      expect(environment).toMatchObject({
        RANK: `${rank}`,
        LOCAL_RANK: `${rank}`,
        WORLD_SIZE: "3",
        LOCAL_WORLD_SIZE: "3",
        GROUP_RANK: "0",
        GROUP_WORLD_SIZE: "1",
        ROLE_NAME: "trainer",
        ROLE_RANK: `${rank}`,
        ROLE_WORLD_SIZE: "3",
        MASTER_ADDR: "127.0.0.1",
        TORCHELASTIC_RESTART_COUNT: "0",
        TORCHELASTIC_MAX_RESTARTS: "2",
        TORCHELASTIC_ERROR_FILE: expect.stringMatching(new RegExp(`/attempt_0/${rank}/error\\.json$`)),
        MOSAIC_ATTEMPT: "0",
        MOSAIC_NODE_ADDR: "127.0.0.1",
        MOSAIC_STORE: `127.0.0.1:${environment.MASTER_PORT}`,
        MOSAIC_RUN_ID: firstEnvironment?.MOSAIC_RUN_ID,
        MASTER_PORT: firstEnvironment?.MASTER_PORT,
      });
      expect(environment.MOSAIC_RUN_ID).toBe(
        `${environment.TORCHELASTIC_RUN_ID}-${environment.MOSAIC_RUN_ID?.slice(-10)}`,
      );
      expect(environment).not.toHaveProperty("MOSAIC_PARENT_PIPE_FD");
      expect(environment).not.toHaveProperty("FORCE_COLOR");
      expect(args).toEqual(["-n", "9", "--json", "--", "x"]);
    }
    expect(new Set(ranks.map(({ arrived }) => arrived))).toEqual(new Set([1, 2, 3]));
  });

  it("contains the user's variables, which cannot replace those of the launcher", async () => {
    const options = ["-n", "1", "--env", "EXTRA=a b", "--threads=5", "--node-arg=--expose-gc", "--master-port=0"];
    const [rank] = await runContract(options);
    expect(rank?.environment).toMatchObject({ EXTRA: "a b", MOSAIC_THREADS: "5" });
    expect(rank?.execArgv).toContain("--expose-gc");
    expect(rank?.cwd).toBe(testDir());
    const refusedOutcome = await run(["--env", "RANK=3", program("contract.mjs")]);
    expect(refusedOutcome.stderr).toBe("mosaic-run: --env RANK: the launcher sets RANK itself; omit the option\n");
    expect(refusedOutcome.code).toBe(2);
  });

  it("contains the port of --master-port; a port in use is reported with the process that uses it", async () => {
    const job = mosaicRun(["-n", "1", "--json", program("wait.mjs")]);
    await job.waitForOutput("is ready");
    const port = /"store":"127\.0\.0\.1:(\d+)"/.exec(job.output())?.[1] ?? "";
    const secondOutcome = await run(["-n", "1", "--master-port", port, program("wait.mjs")]);
    expect(secondOutcome.stderr).toMatch(
      new RegExp(`^mosaic-run: port ${port} is in use by pid ${job.pid} \\(\\S+\\); omit --master-port`),
    );
    expect(secondOutcome.code).toBe(75);
    // The second job leaves no logs, because it has not started any rank.
    expect(readdirSync(temporaryDir()).filter((name) => name.startsWith("mosaic-logs-"))).toHaveLength(1);
    job.child.kill("SIGTERM");
    expect((await job.outcome).code).toBe(143);
    expect((await runContract(["-n", "1", "--master-port", port]))[0]?.environment.MASTER_PORT).toBe(port);
  });
});

describe("more ranks than the limit on open files allows", () => {
  const spawnShellCode = 'require("node:child_process").spawnSync("sh", process.argv.slice(1), { stdio: "inherit" })';
  const runWithLimit = (ranks: number): Promise<ProcessOutcome> =>
    runNode([
      ...["-e", `process.exit(${spawnShellCode}.status)`, "--", "-c", 'ulimit -n 60; exec "$@"', "sh"],
      ...[process.execPath, CLI, "-n", String(ranks), "--exec", "sleep", "0.1"],
    ]).outcome;

  // Whether the limit is reached in the launcher or at a rank depends on the files that Node itself has open.
  it.each([7, 8, 16])("are rejected with a remedy: %i", async (ranks) => {
    const { code, stderr } = await runWithLimit(ranks);
    if (code !== 0)
      expect(stderr).toContain("too many open files; raise the limit (ulimit -n 4096), or start fewer ranks");
    expect([0, 2, 126]).toContain(code);
    if (ranks === 16) expect(code).toBe(2);
  });
});

describe("an entry", () => {
  it("has an empty standard input, which the help states together with the default unit of times", async () => {
    expect(await run(["-n", "1", "--exec", "wc", "-c"])).toMatchObject({ code: 0, stdout: "[0] 0\n" });
    const { stdout } = await run(["--help"]);
    expect(stdout).toContain("a number without a unit is in seconds. The standard input of ranks is empty.");
  });

  it("in TypeScript runs with the project's tsx, and its stack traces have the positions of the source", async () => {
    const outcome = await run(["-n", "2", program("typed.ts")], { cwd: PACKAGE });
    expect(outcome.stdout.split("\n").toSorted()).toEqual(["", "[0] typed rank 0", "[1] typed rank 1"]);
    const failedOutcome = await run(["-n", "1", program("typed.ts"), "throws"], { cwd: PACKAGE });
    expect(failedOutcome.stderr).toMatch(/✖ rank 0 .*Error: typed rank 0 throws\n {4}at .*typed\.ts:6:\d+/);
    expect(failedOutcome.code).toBe(1);
  });

  it("in TypeScript is rejected with a remedy if tsx is missing and Node does not strip types", async () => {
    writeFileSync(join(testDir(), "a.ts"), "const a: number = 1;\n");
    const outcome = await run(["a.ts"]);
    const stripsTypes = Boolean((process.features as { typescript?: unknown }).typescript);
    expect(outcome.code).toBe(stripsTypes ? 0 : 2);
    if (!stripsTypes) expect(outcome.stderr).toContain('run "npm install --save-dev tsx"');
  });

  it("can be any program with --exec, whose exit code becomes that of the launcher", async () => {
    const outcome = await run(["-n", "2", "--exec", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE"']);
    expect(outcome.stdout.split("\n").toSorted()).toEqual(["", "[0] rank 0 of 2", "[1] rank 1 of 2"]);
    expect(outcome.code).toBe(0);
    // A rank that fails ends the other ranks, even if they have more output to print.
    expect((await run(["-n", "2", "--exec", "sh", "-c", "exit $((3 * RANK))"])).code).toBe(3);
  });

  it("is required, and an unknown option is rejected with a suggestion", async () => {
    expect(await run([])).toMatchObject({ code: 2, stderr: expect.stringContaining("expected an entry to run") });
    expect(await run(["--nprocs=2", "a.js"])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining("did you mean --nproc-per-node?"),
    });
  });

  it("is not required for help and version", async () => {
    expect(await run(["--help"])).toMatchObject({ code: 0, stdout: expect.stringContaining("-n, --nproc-per-node") });
    expect(await run(["-V"])).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/^mosaic-run \d+\.\d+\.\d+, Node/),
    });
  });
});

describe("a missing directory", () => {
  it("is reported if it is the working directory at the start", async () => {
    mkdirSync(join(testDir(), "gone"));
    const deleteDirectoryCode = 'process.chdir("gone"); require("node:fs").rmdirSync("../gone");';
    const script = `${deleteDirectoryCode} process.exitCode = require("node:child_process").spawnSync(process.execPath, process.argv.slice(1), { stdio: "inherit" }).status`;
    const outcome = await runNode(["-e", script, "--", CLI, "-n1", "--exec", "true"]).outcome;
    expect(outcome.stderr).toMatch(
      /^mosaic-run: the working directory has been deleted \(.*\); change to an existing directory\n$/,
    );
    expect(outcome.code).toBe(2);
  });

  it("is reported if it is the working directory at a restart", async () => {
    mkdirSync(join(testDir(), "gone"));
    const options = ["-n1", "--max-restarts=1", "--restart-backoff=1ms", "--exec", "sh", "-c", "rmdir ../gone; exit 1"];
    const outcome = await run(options, { cwd: join(testDir(), "gone") });
    expect(outcome.stderr).toMatch(
      /│ cannot start .*: .*ENOENT \(the working directory \S+\/gone has been deleted\)\n/,
    );
    expect(outcome.code).toBe(126);
  });

  it("is reported if it is the directory for temporary files", async () => {
    writeFileSync(join(testDir(), "file"), "");
    const env = { TMPDIR: join(testDir(), "none") };
    const outcome = await run(["-n1", "--log-dir=logs", "--exec", "true"], { env });
    expect(outcome.stderr).toMatch(
      /^mosaic-run: cannot create a directory in \S+\/none: ENOENT.*; set TMPDIR to a different directory\n$/,
    );
    expect(outcome.code).toBe(2);
  });

  it("is reported after the process that tests setpriv has exited", async () => {
    const bin = join(testDir(), "bin");
    mkdirSync(bin);
    writeFileSync(join(bin, "setpriv"), "#!/bin/sh\nsleep 0.3\n", { mode: 0o755 });
    const env = { TMPDIR: join(testDir(), "none"), PATH: `${bin}:${process.env.PATH}` };
    const outcome = await run(["-n1", "--log-dir=logs", "--exec", "true"], { env });
    expect(listLivingProcesses()).toEqual([]);
    expect(outcome.code).toBe(2);
  });
});

describe("a dry run", () => {
  it("shows every value with its source, the command, and every rank's environment, and starts nothing", async () => {
    writeFileSync(join(testDir(), "mosaic.launch.json"), '{ "grace": "5s" }');
    writeFileSync(join(testDir(), "train.mjs"), "");
    const options = ["-n", "2", "--env", "EXTRA=1", "--dry-run", "--threads=1", "train.mjs", "--epochs", "3 or 4"];
    const { stdout, code } = await run(options, { env: { MOSAIC_ROLE: "worker", PET_MAX_RESTARTS: "1" } });
    const stableOutput = stdout
      .replaceAll(testDir(), "<dir>")
      .replaceAll(/t-[0-9a-f-]{36}/g, "<name>")
      .replace(process.execPath, "<node>")
      .replace(/\S+\/preload\.cjs/, "<preload>");
    await expect(stableOutput).toMatchFileSnapshot("snapshots/dry-run.txt");
    expect(code).toBe(0);
    expect(readdirSync(temporaryDir())).toEqual([]);
  });

  it("prints one object with --json, and rejects what a run would reject", async () => {
    writeFileSync(join(testDir(), "train.mjs"), "");
    const { stdout } = await run(["--dry-run", "--json", "--master-port=4711", "train.mjs"]);
    const description = JSON.parse(stdout) as { ranks: { MASTER_PORT: string }[]; options: object };
    expect(description.ranks[0]?.MASTER_PORT).toBe("4711");
    expect(description.options).toMatchObject({ "master-port": { value: "4711", source: "--master-port" } });
    expect((await run(["--dry-run", "gone.mjs"])).code).toBe(2);
    expect((await run(["--dry-run", "--env", "RANK=1", "train.mjs"])).code).toBe(2);
  });
});

describe("the launcher under srun", () => {
  it("starts the ranks only in the first task on a node", async () => {
    const slurmTaskEnv = { SLURM_JOB_ID: "1", SLURM_STEP_ID: "0", SLURM_STEP_NUM_NODES: "1", SLURM_LOCALID: "1" };
    const outcome = await run(["--exec", "sh", "-c", "echo started"], { env: slurmTaskEnv });
    expect(outcome).toMatchObject({ code: 0, stdout: "" });
    expect(outcome.stderr).toContain("another task on this node starts the ranks");
    const firstTaskOutcome = await run(["-n1", "--exec", "sh", "-c", "echo started"], {
      env: { ...slurmTaskEnv, SLURM_LOCALID: "0" },
    });
    expect(firstTaskOutcome.stdout).toBe("[0] started\n");
  });
});

describe("a job inside a job", () => {
  it("has its own ranks and its own run ID", async () => {
    const innerCli = join(import.meta.dirname, "../dist/cli.js");
    const outcome = await run(["-n", "2", innerCli, "-n", "2", program("contract.mjs")], { env });
    expect(outcome.code).toBe(0);
    expect(outcome.stdout.match(/"WORLD_SIZE":"2"/g)).toHaveLength(4);
    expect(new Set(outcome.stdout.match(/"MOSAIC_RUN_ID":"[^"]*"/g)).size).toBe(2);
  });

  it("ends when the outer launcher is killed", async () => {
    const innerCli = join(import.meta.dirname, "../dist/cli.js");
    const job = mosaicRun(["-n", "1", innerCli, "-n", "2", program("wait.mjs")]);
    await job.waitForOutput("is ready", 2);
    job.child.kill("SIGKILL");
    await waitUntil(
      () => listLivingProcesses().length === 0,
      () => `still there: ${listLivingProcesses().join(" ")}`,
      2000,
    );
    // The inner guard removes the inner job's secrets after its last process.
    await waitUntil(
      () => readdirSync(temporaryDir()).every((name) => !name.startsWith("mosaic-run-")),
      () => readdirSync(temporaryDir()).join(" "),
    );
  });
});

describe("the library", () => {
  it("launches jobs, reports events, resolves to results and can be aborted", async () => {
    const script = join(testDir(), "library.mjs");
    writeFileSync(
      script,
      `import { launch, start, UsageError } from ${JSON.stringify(INDEX)};
      const events = [];
      const onEvent = (event) => events.push(event.type);
      const failed = await launch({ entry: "sh", args: ["-c", "exit 7"], exec: true, nprocPerNode: 2, onEvent });
      const abort = new AbortController();
      const waiting = launch({ entry: "sleep", args: ["600"], exec: true, nprocPerNode: 1, abort: abort.signal });
      abort.abort();
      const aborted = await waiting;
      const killed = start({ entry: "sleep", args: ["600"], exec: true, nprocPerNode: 1, logDir: "kept" });
      killed.signal("SIGINT");
      const wrong = await launch({ entry: "nothing.js" }).catch((error) => error);
      console.log(JSON.stringify({ events, failed, aborted, killed: await killed.done, wrong: wrong instanceof UsageError }));`,
    );
    const outcome = await runNode([script]).outcome;
    expect(outcome.stderr).toBe("");
    const reportedResult = JSON.parse(outcome.stdout) as Record<string, unknown>;
    expect(reportedResult.failed).toMatchObject({
      outcome: "failed",
      exitCode: 7,
      attempts: 1,
      failure: { exitCode: 7 },
    });
    expect(reportedResult.events).toEqual(expect.arrayContaining(["start", "spawn", "exit", "failure", "end"]));
    expect(reportedResult.aborted).toMatchObject({ outcome: "cancelled", exitCode: 143 });
    expect(reportedResult.killed).toMatchObject({ outcome: "cancelled", exitCode: 130 });
    expect(reportedResult.wrong).toBe(true);
  });
});
