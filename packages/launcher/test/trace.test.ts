import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { mosaicRun, program, testDir } from "./harness.ts";

/** Returns the directory of the only run in the directory of traces. */
function runDirectory(): string {
  const [runId = "", ...otherRunIds] = readdirSync(join(testDir(), "traces"));
  expect(otherRunIds).toEqual([]);
  return join(testDir(), "traces", runId);
}

const parseTraces = (page: string): readonly unknown[] =>
  [...page.matchAll(/<script type="application\/json" class="trace-data">(.*)<\/script>/g)].map(([, text = ""]) =>
    JSON.parse(text),
  );

test("the traces of all ranks are inserted into the page that the ranks write", async () => {
  const tracedArgs = ["-n", "3", "--trace", "traces", program("traced.mjs")];
  const { code, stderr } = await mosaicRun(tracedArgs, { cwd: testDir() }).outcome;
  const page = join(runDirectory(), "index.html");
  expect([code, stderr]).toEqual([0, `mosaic-run: trace of 3 ranks: ${page}\n`]);
  const text = readFileSync(page, "utf8");
  expect([text.startsWith("<p>\n"), text.endsWith("\n</p>")]).toEqual([true, true]);
  expect(text.match(/<\/script>/g)?.length).toBe(3);
  expect(parseTraces(text)).toEqual(["0", "1", "2"].map((rank) => ({ rank, attempt: "0", text: "</script>" })));
});

test("the page shows the traces of the last of several attempts", async () => {
  const restartArgs = ["--max-restarts=1", "--restart-backoff=1ms"];
  const tracedArgs = ["-n", "2", "--trace", "traces", ...restartArgs, program("traced.mjs"), "fails"];
  const { code } = await mosaicRun(tracedArgs, { cwd: testDir() }).outcome;
  expect(code).toBe(0);
  expect(readdirSync(runDirectory()).toSorted()).toEqual(["attempt_0", "attempt_1", "index.html"]);
  const shownTraces = parseTraces(readFileSync(join(runDirectory(), "index.html"), "utf8"));
  expect(shownTraces).toEqual(["0", "1"].map((rank) => ({ rank, attempt: "1", text: "</script>" })));
});

test("a job whose ranks write no trace, or no page, reports the reason", async () => {
  const idleArgs = ["-n", "1", "--trace", "traces", "--exec", "true"];
  const idleOutcome = await mosaicRun(idleArgs, { cwd: testDir() }).outcome;
  expect(idleOutcome.code).toBe(0);
  expect(idleOutcome.stderr).toMatch(
    /^mosaic-run: no trace: no rank wrote a trace; close the context of @mosaic\/attention on each rank/,
  );
  const bareOutcome = await mosaicRun(["--json", "--trace", "traces", program("traced.mjs"), "bare"], {
    cwd: testDir(),
  }).outcome;
  const events = bareOutcome.stdout
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as { event: string });
  expect(events.map(({ event }) => event).slice(-2)).toEqual(["trace", "end"]);
  const viewer = join(runDirectory(), "attempt_0", "viewer.html");
  expect(events.at(-2)).toMatchObject({
    ranks: 0,
    reason: expect.stringContaining(`expected ${viewer}, which a rank writes after its trace, received 1 traces`),
  });
});

test("a directory for traces that cannot be written is rejected before a rank is started", async () => {
  writeFileSync(join(testDir(), "file"), "");
  const marker = join(testDir(), "started");
  const { code, stderr } = await mosaicRun(["-n", "1", "--trace", "file/traces", "--exec", "touch", marker], {
    cwd: testDir(),
  }).outcome;
  expect(stderr).toMatch(/^mosaic-run: --trace: \S+\/file\/traces cannot be written: ENOTDIR: [^\n]*\n$/);
  expect([code, existsSync(marker)]).toEqual([2, false]);
});

test("without --trace, MOSAIC_TRACE_DIR is not set for the ranks", async () => {
  const printArgs = ["-n", "1", "--exec", process.execPath, "-p", "process.env.MOSAIC_TRACE_DIR ?? 'unset'"];
  expect((await mosaicRun(printArgs, { cwd: testDir() }).outcome).stdout).toContain("unset");
});
