import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { INDEX, type ProcessOutcome, program, run, temporaryDir, testDir } from "./harness.ts";

/** Directory from which the tsx of this project is resolved. */
const PACKAGE = join(import.meta.dirname, "..");
/** Whether this version of Node runs TypeScript itself. Otherwise tsx does. */
const stripsTypes = Boolean((process.features as { typescript?: unknown }).typescript);

/** Number of repetitions of each fault. `MOSAIC_TEST_REPEAT=20` is the check that no race is left. */
const numRepeats = Number(process.env.MOSAIC_TEST_REPEAT ?? 1) - 1;

const runFault = (faultName: string, ...options: string[]): Promise<ProcessOutcome> =>
  run(["-n", "3", ...options, program("fault.mjs"), faultName], { env: { TEST_INDEX: INDEX } });

/** Returns the report, which is the end of stderr. */
const extractReport = (outcome: ProcessOutcome): string => outcome.stderr.slice(outcome.stderr.lastIndexOf("✖"));

describe("a rank that fails or exits early", { repeats: numRepeats }, () => {
  it("is reported with its error and cause, and the other ranks end within a second", async () => {
    const outcome = await runFault("throws", "--json");
    const events = outcome.stdout
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as Record<string, unknown>);
    const exitEvents = events.filter(({ event }) => event === "exit");
    expect(exitEvents).toHaveLength(3);
    expect(Number(exitEvents.at(-1)?.time) - Number(exitEvents[0]?.time)).toBeLessThan(1000);
    expect(exitEvents[0]).toMatchObject({ rank: 1, code: 1 });
    const failure = events.find(({ event }) => event === "failure")?.failure;
    expect(failure).toMatchObject({
      rank: 1,
      exitCode: 1,
      error: { name: "TypeError", message: "bad loss", cause: { message: "the weights are NaN" } },
      stopped: [0, 2],
      secondary: [],
    });
    expect(outcome.code).toBe(1);
  });

  it("has its error, stack, cause, exit code and logs in the report at the end of stderr", async () => {
    const outcome = await runFault("throws");
    expect(extractReport(outcome)).toMatch(
      /^✖ rank 1 \(\S+, local 1, pid \d+\) failed \d+\.\d s into attempt 0: TypeError: bad loss\n {4}at .*fault\.mjs:\d+:\d+\)?\n/,
    );
    expect(extractReport(outcome)).toContain("  caused by Error: the weights are NaN\n    at ");
    expect(extractReport(outcome)).toMatch(
      / {2}exit 1 · 2 ranks stopped by launcher\n {2}log directory of all ranks: \S+, kept for a week; see --log-dir\n {2}logs \S+\/attempt_0\/1\/stderr\.log {3}exit code 1\n$/,
    );
    expect(outcome.code).toBe(1);
  });

  it("is reported with the stack of an unhandled rejection", async () => {
    const outcome = await runFault("rejects");
    expect(extractReport(outcome)).toContain("RangeError: nobody catches this\n    at ");
    expect(outcome.code).toBe(1);
  });

  it("is reported with a thrown value that is not an error", async () => {
    expect(extractReport(await runFault("throws-text"))).toContain("Thrown: just text\n");
  });

  it("has its error printed once, and logged as Node prints it", async () => {
    const outcome = await runFault("throws");
    for (const text of ["bad loss", "the weights are NaN"])
      expect((outcome.stdout + outcome.stderr).split(text)).toHaveLength(2);
    const log = join(testDir(), /logs (\S+)/.exec(extractReport(outcome))?.[1] ?? "");
    expect(readFileSync(log, "utf8")).toMatch(/^file:.*fault\.mjs:\d+\n[^]*\nTypeError: bad loss\n[^]*\nNode\.js v/);
    expect(readFileSync(log, "utf8")).not.toContain("mosaic-uncaught");
  });

  it("has its error printed once, and the errors of the other ranks once each", async () => {
    const { stderr } = await runFault("throws+loses-peer");
    expect(stderr.match(/PeerLostError: rank 1 is gone/g)).toHaveLength(2);
    expect(stderr.match(/TypeError: bad loss/g)).toHaveLength(1);
  });

  it("keeps the output and exit code of its own handler of uncaught errors", async () => {
    const script =
      'process.on("uncaughtException", (e) => { console.error("handled", e.message); process.exit(9); }); throw new Error("x1")';
    writeFileSync(join(testDir(), "handles.mjs"), script);
    const outcome = await run(["-n1", "handles.mjs"]);
    expect(outcome.stderr).toContain("[0] handled x1\n");
    expect(outcome.code).toBe(9);
  });

  it("is reported instead of a rank that has handled an error and continued", async () => {
    const script = `
      if (process.env.RANK === "0") {
        process.on("uncaughtException", () => console.log("handled"));
        setImmediate(() => { throw new Error("a harmless error"); });
        setInterval(() => {}, 1000);
      } else setTimeout(() => process.exit(5), 500);`;
    writeFileSync(join(testDir(), "continues.mjs"), script);
    const outcome = await run(["-n2", "continues.mjs"]);
    expect(outcome.stdout).toContain("[0] handled\n");
    expect(extractReport(outcome)).toMatch(/^✖ rank 1 .*: exit 5\n {2}exit 5 · 1 rank stopped by launcher\n/);
    expect(outcome.code).toBe(5);
  });

  it("is reported with an error that it has handled before it exits", async () => {
    const script = `
      process.on("uncaughtException", () => setTimeout(() => process.exit(6), 100));
      throw new Error("the cause");`;
    writeFileSync(join(testDir(), "exits-later.mjs"), script);
    const outcome = await run(["-n1", "exits-later.mjs"]);
    expect(extractReport(outcome)).toMatch(/^✖ rank 0 .*: Error: the cause\n/);
    expect(outcome.code).toBe(6);
  });

  it("determines the launcher's exit code, and its last output is shown once", async () => {
    const shownOutcome = await runFault("exits");
    expect(shownOutcome.stderr.split("the last words of this rank")).toHaveLength(2);
    expect(shownOutcome.stderr).toContain("[1] the last words of this rank\n");
    const outcome = await runFault("exits", "--console-ranks=0");
    expect(extractReport(outcome)).toContain(": exit 42\n    │ the last words of this rank\n  exit 42 · 2 ranks");
    expect(outcome.code).toBe(42);
  });

  it("is reported as killed by another process after SIGKILL", async () => {
    const outcome = await runFault("is-killed");
    expect(extractReport(outcome)).toMatch(
      /: killed by SIGKILL\n {2}hint: killed by another process, not by the launcher/,
    );
    expect(outcome.code).toBe(137);
  });

  it("is reported with a hint after a segmentation fault", async () => {
    const outcome = await runFault("segfaults");
    expect(extractReport(outcome)).toMatch(/: killed by SIGSEGV\n {2}hint: native code crashed/);
    expect(outcome.code).toBe(139);
  });

  it("is reported with the error file that it wrote itself", async () => {
    const runWithErrorFile = (text: string): Promise<ProcessOutcome> =>
      run(["-n1", "--exec", "sh", "-c", 'printf %s "$1" > "$TORCHELASTIC_ERROR_FILE"; exit 3', "sh", text]);
    const pythonOutcome = await runWithErrorFile(
      '{ "message": { "message": "ValueError: bad loss", "extraInfo": {} } }',
    );
    expect(extractReport(pythonOutcome)).toContain("ValueError: bad loss\n  exit 3\n");
    for (const outcome of [pythonOutcome, await runWithErrorFile("null")]) expect(outcome.code).toBe(3);
  });

  it("causes other ranks that ignore SIGTERM to be killed within a second", async () => {
    const outcome = await runFault("throws+ignores-sigterm", "--json");
    const exitLines = outcome.stdout.split("\n").filter((line) => line.includes('"event":"exit"'));
    const times = exitLines.map((line) => (JSON.parse(line) as { time: number }).time);
    expect(Math.max(...times) - Math.min(...times)).toBeLessThan(1000);
    expect(outcome.stdout).toContain('"event":"kill"');
    expect(outcome.code).toBe(1);
  });

  it("leaves no process, even in a different session", async () => {
    const outcome = await runFault("escapes-then-throws");
    expect(outcome.stderr).toMatch(/mosaic-run: killed orphaned processes: pid \d+\n/);
    expect(extractReport(outcome)).toContain("Error: after the escape");
    expect(outcome.code).toBe(1);
  });

  it("loses no line of 5 MB of output", async () => {
    const outcome = await runFault("floods-then-throws");
    const floodLines = outcome.stdout.split("\n").filter((line) => line.startsWith("[1] "));
    expect(floodLines).toHaveLength(50_001);
    expect(floodLines.at(-1)).toBe("[1] the last of the flood");
    expect(new Set(floodLines.slice(0, -1))).toEqual(new Set([`[1] ${"x".repeat(99)}`]));
    expect(extractReport(outcome)).toContain("Error: after the flood");
  });

  it("is reported as the cause when other ranks lose their peer", async () => {
    const outcome = await runFault("throws+loses-peer");
    expect(extractReport(outcome)).toContain("TypeError: bad loss");
    expect(extractReport(outcome)).toContain("exit 1 · 2 also failed (ranks 0,2: peer lost)");
    expect(outcome.code).toBe(1);
  });

  it("does not end the other ranks if its exit code is 0", async () => {
    const outcome = await runFault("exits-early");
    expect(outcome.stdout.split("\n").toSorted()).toEqual(["", "[0] rank 0 goes on", "[2] rank 2 goes on"]);
    expect(outcome.code).toBe(0);
    expect(readdirSync(temporaryDir())).toEqual([]);
  });
});

describe("error reports", () => {
  it("explain a full JavaScript heap", async () => {
    const outcome = await runFault("fills-heap", "--node-arg=--max-old-space-size=20");
    expect(extractReport(outcome)).toMatch(/killed by SIGABRT\n[^✖]*hint: the JavaScript heap is full/);
    expect(outcome.code).toBe(134);
  });

  it("explain a top-level await that never settles", async () => {
    const outcome = await runFault("unsettled");
    expect(extractReport(outcome)).toContain("hint: a top-level await never settled");
    expect(outcome.code).toBe(13);
  });

  it("explain a port in use, and name the process that uses it", async () => {
    const outcome = await runFault("port-taken");
    expect(extractReport(outcome)).toMatch(
      /EADDRINUSE[^✖]*hint: port \d+ is in use by pid \d+ \(\S+\); listen on port 0/,
    );
  });

  it("explain an ES module that Node loads as CommonJS", async () => {
    writeFileSync(join(testDir(), "package.json"), '{ "type": "commonjs" }');
    writeFileSync(join(testDir(), "imports.js"), 'import "node:fs";\n');
    writeFileSync(join(testDir(), "awaits.ts"), "await Promise.resolve();\nexport {};\n");
    for (const entry of ["imports.js", ...(stripsTypes ? [] : ["awaits.ts"])]) {
      const outcome = await run(["-n1", join(testDir(), entry)], { cwd: PACKAGE });
      expect(extractReport(outcome)).toContain('hint: Node loaded an ES module as CommonJS; set "type": "module" in');
    }
  });

  it("show the source line of syntax errors, and what Node printed for missing packages", async () => {
    writeFileSync(join(testDir(), "broken.mjs"), "const a = 1;\nconst b = ;\n");
    const syntaxOutcome = await run(["-n1", "broken.mjs"]);
    expect(extractReport(syntaxOutcome)).toMatch(
      /SyntaxError: Unexpected token ';'[^✖]* {4}│ .*broken\.mjs:2\n {4}│ const b = ;/,
    );
    writeFileSync(join(testDir(), "broken.cjs"), "\nfunction ( {\n");
    writeFileSync(join(testDir(), "loads.cjs"), 'require("./broken.cjs");\n');
    for (const entry of ["broken.cjs", "loads.cjs"])
      expect(extractReport(await run(["-n1", entry]))).toMatch(
        /: SyntaxError: Function statements require a function name\n {4}│ \/.*\/broken\.cjs:2\n {4}│ function \( \{\n/,
      );
    writeFileSync(join(testDir(), "misnames.mjs"), 'import { nothing } from "node:fs";\n');
    expect(extractReport(await run(["-n1", "misnames.mjs"]))).toMatch(
      / {4}│ .*misnames\.mjs:1\n {4}│ import \{ nothing/,
    );
    writeFileSync(join(testDir(), "lacks.mjs"), 'import "no-such-package";\n');
    const missingImportOutcome = await run(["-n1", "lacks.mjs"]);
    expect(extractReport(missingImportOutcome)).toMatch(
      /Cannot find package 'no-such-package' imported from .*lacks\.mjs/,
    );
  });

  it("explain a log directory that cannot be created", async () => {
    writeFileSync(join(testDir(), "file"), "");
    const outcome = await run(["--log-dir", "file", program("wait.mjs")]);
    expect(outcome.stderr).toMatch(/^mosaic-run: --log-dir: \S+\/file\/t-\S+ cannot be created: ENOTDIR/);
    expect(outcome.code).toBe(2);
  });

  it.each(["/proc/x", "/proc/x/y", "/sys/x", "/dev/null/x"])(
    "explain a log directory at an impossible path: %s",
    async (dir) => {
      const outcome = await run(["--log-dir", dir, program("wait.mjs")]);
      expect(outcome.stderr).toMatch(
        new RegExp(`^mosaic-run: --log-dir: ${dir}/t-\\S+ cannot be created: E[A-Z]+: .*\n$`),
      );
      expect(outcome.code).toBe(2);
    },
  );

  it("explain a default log directory that cannot be created", async () => {
    const outcome = await run([program("wait.mjs")], { env: { TMPDIR: "/proc/x" } });
    expect(outcome.stderr).toMatch(
      /^mosaic-run: log directory \/proc\/x\/mosaic-logs-\S+ cannot be created: E[A-Z]+: .*; set TMPDIR to a different directory, or pass --log-dir\n$/,
    );
    expect(outcome.code).toBe(2);
  });

  it("explain a log directory that was deleted and cannot be created again at a restart", async () => {
    const script = "rm -rf logs; touch logs; exit 1";
    const options = ["-n1", "--log-dir", "logs", "--max-restarts=1", "--restart-backoff=1ms"];
    const outcome = await run([...options, "--exec", "sh", "-c", script]);
    expect(outcome.stderr).toMatch(/mosaic-run: --log-dir: \S+\/attempt_1\/0 cannot be written: ENOTDIR/);
    expect(outcome.code).toBe(2);
  });

  it("name a log file below --log-dir, where the logs are kept", async () => {
    const outcome = await runFault("exits", "--log-dir", "kept");
    const log = /logs (\S+)/.exec(extractReport(outcome))?.[1] ?? "";
    expect(log).toMatch(/^\.\/kept\/t-[\w-]+\/attempt_0\/1\/stderr\.log$/);
    expect(readdirSync(`${testDir()}/kept`)).toHaveLength(1);
  });
});
