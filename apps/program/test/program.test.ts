import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { appendFileSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { expect, onTestFinished, test } from "vitest";
import {
  LearningCurve,
  Progress,
  readLearningCurve,
  launchRanks,
  throwIfFailed,
  RanksFailedError,
  UsageError,
} from "../src/index.ts";

const distUrl = new URL("../dist/index.js", import.meta.url).href;

function directory(): string {
  const path = mkdtempSync(join(tmpdir(), "program-test-"));
  onTestFinished(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

test("a learning curve continues after the step of a checkpoint, without a partial line of a killed process", () => {
  const path = join(directory(), "curve.jsonl");
  expect(readLearningCurve(path)).toEqual([]);
  const curve = new LearningCurve<{ step: number; loss: number }>(path);
  for (const step of [1, 2, 3]) curve.append({ step, loss: 1 / step });
  appendFileSync(path, '{"step":4,"lo');
  curve.truncateAfter(2);
  curve.append({ step: 3, loss: 0 });
  expect(readLearningCurve(path)).toEqual([
    { step: 1, loss: 1 },
    { step: 2, loss: 0.5 },
    { step: 3, loss: 0 },
  ]);
});

test("a learning curve keeps its lines if truncating it fails", () => {
  const path = join(directory(), "curve.jsonl");
  const lines = '{"step":1}\n{"step":2}\n{"step":3}\n';
  writeFileSync(path, lines);
  const program = `import { LearningCurve } from ${JSON.stringify(distUrl)};
    new LearningCurve(${JSON.stringify(path)}).truncateAfter(2);`;
  // Files may have at most 0 bytes.
  const command = "trap '' XFSZ; ulimit -f 0; \"$@\"";
  const args = ["-c", command, "bash", process.execPath, "--input-type=module", "-e", program];
  const { status, stderr } = spawnSync("bash", args, { encoding: "utf8" });
  expect(status).toBe(1);
  expect(stderr).toContain("EFBIG");
  expect(readFileSync(path, "utf8")).toBe(lines);
});

test.each(['{"step":2,"lo', "", "null", '{"loss":1}'])(
  "a damaged line %j of a learning curve is an error that names the file and the line",
  (line) => {
    const path = join(directory(), "curve.jsonl");
    writeFileSync(path, `{"step":1}\n${line}\n{"step":3}\n`);
    expect(() => readLearningCurve(path)).toThrow(UsageError);
    expect(() => readLearningCurve(path)).toThrow(
      `${path}, line 2: expected a JSON object with its step, received ${JSON.stringify(line)}; remove the line`,
    );
  },
);

test("launchRanks reports the JSON lines of rank 0, and an error includes the failed rank and its message", async () => {
  const path = join(directory(), "rank.mjs");
  writeFileSync(path, "console.log(JSON.stringify({ step: Number(process.env.RANK) + Number(process.argv[2]) }));");
  const reports: unknown[] = [];
  const program = { entry: pathToFileURL(path), args: ["7"], ranks: 2 };
  throwIfFailed(await launchRanks(program, { onReport: (report) => reports.push(report) }));
  expect(reports).toEqual([{ step: 7 }]);
  writeFileSync(path, 'if (process.env.RANK === "1") throw new Error("no data"); setInterval(() => {}, 1000);');
  const failedRun = await launchRanks(program, { maxRestarts: 0 });
  expect(() => throwIfFailed(failedRun)).toThrow(RanksFailedError);
  expect(() => throwIfFailed(failedRun)).toThrow(/rank 1 failed \(exit 1\): .*no data/s);
});

test.each([
  ["SIGINT", 130],
  ["SIGTERM", 143],
] as const)("a program that %s ends while ranks run has the exit code of the signal", async (signal, code) => {
  const [rank, path] = [join(directory(), "rank.mjs"), join(directory(), "program.mjs")];
  writeFileSync(rank, 'console.error("rank started"); setInterval(() => {}, 1000);');
  writeFileSync(
    path,
    `import { abortOnSignals, launchRanks, runProgram, throwIfFailed } from ${JSON.stringify(distUrl)};
    const abort = abortOnSignals();
    const program = { entry: new URL(${JSON.stringify(pathToFileURL(rank).href)}), args: [], ranks: 1 };
    process.exitCode = await runProgram(async () => throwIfFailed(await launchRanks(program, { abort })));`,
  );
  const child = spawn(process.execPath, [path], { stdio: ["ignore", "inherit", "pipe"] });
  onTestFinished(() => void child.kill("SIGKILL"));
  let stderr = "";
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    stderr += text;
    if (!child.killed && stderr.includes("rank started")) child.kill(signal);
  });
  expect(await once(child, "close")).toEqual([code, null]);
  expect(stderr).toBe("[0] rank started\ncancelled\n");
});

test("Progress prints one line per 10 % if the output is not a terminal", () => {
  const lines: string[] = [];
  const showProgress = new Progress({ isTTY: false, write: (line: string) => lines.push(line) } as never).begin();
  for (let i = 0; i <= 40; i++) showProgress(i / 40, `step ${i}`);
  expect(lines.length).toBe(11);
  expect(lines[5]).toMatch(/^█{10}░{10} step 20, \d+ s, about \d+ s remaining\n$/);
  expect(lines.at(-1)).toMatch(/step 40, \d+ s\n$/);
});

/** Runs a program that writes `numLines` lines, with the given redirection of its output. */
function runWriter(numLines: number, redirection: string): { readonly status: number | null; readonly stderr: string } {
  const path = join(directory(), "program.mjs");
  writeFileSync(
    path,
    `import { writeFileSync } from "node:fs";
    import { runProgram } from ${JSON.stringify(distUrl)};
    process.exitCode = await runProgram(async () => {
      for (let i = 0; i < ${numLines}; i++) {
        process.stdout.write("line " + i + "\\n");
        await new Promise((resolve) => setTimeout(resolve, 1));
      }
      writeFileSync(${JSON.stringify(`${path}.done`)}, "");
      return 0;
    });`,
  );
  const command = `set -o pipefail; "$@" ${redirection}`;
  const args = ["-c", command, "bash", process.execPath, path];
  const { status, stderr } = spawnSync("bash", args, { encoding: "utf8" });
  expect(existsSync(`${path}.done`)).toBe(true);
  return { status, stderr };
}

test("a program whose output is no longer read continues, without an error", () => {
  expect(runWriter(50, "| head -1")).toEqual({ status: 0, stderr: "" });
  expect(runWriter(50, "2>&1 | true")).toEqual({ status: 0, stderr: "" });
});

test.runIf(existsSync("/dev/full"))(
  "a program whose output cannot be written ends with exit code 1 and the cause",
  () => {
    const { status, stderr } = runWriter(3, "> /dev/full");
    expect([status, stderr]).toEqual([1, "cannot write to standard output: ENOSPC: no space left on device, write\n"]);
  },
);
