import { readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { PassThrough, Writable } from "node:stream";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { LaunchEvent } from "../src/job.ts";
import { LineSplitter, MAX_LINE_BYTES, UncaughtFilter, uncaughtMarker } from "../src/output/lines.ts";
import { OutputSink } from "../src/output/sink.ts";
import { TextConsole } from "../src/output/text-console.ts";
import { CLI, mosaicRun, type ProcessOutcome, program, run, runNode, testDir, waitUntil } from "./harness.ts";

function splitLines(chunks: readonly Buffer[]): { kind: string; text: string }[] {
  const emittedLines: { kind: string; text: string }[] = [];
  const splitter = new LineSplitter((kind, text) => emittedLines.push({ kind, text }));
  for (const chunk of chunks) splitter.push(chunk);
  splitter.end();
  return emittedLines;
}

const formatLines = (text: string): string[] =>
  splitLines([Buffer.from(text)]).map(({ kind, text: one }) => `${kind}:${one}`);

describe("lines", () => {
  it("end at \\n and \\r\\n; a lone \\r ends progress", () => {
    expect(formatLines("a\nb\r\n\nc")).toEqual(["line:a", "line:b", "line:", "line:c"]);
    expect(formatLines("10%\r50%\r100%\ndone\n")).toEqual(["progress:10%", "progress:50%", "line:100%", "line:done"]);
    expect(formatLines("\r10%\r50%")).toEqual(["progress:10%", "line:50%"]);
    expect(formatLines("10%\r")).toEqual(["progress:10%", "line:10%"]);
  });

  it("do not depend on how the bytes are split into chunks, even within characters", () => {
    const text = fc
      .array(fc.constantFrom("a", "é", "😀", "\n", "\r\n"), { maxLength: 40 })
      .map((parts) => parts.join(""));
    fc.assert(
      fc.property(text, fc.array(fc.nat(100)), (whole, cuts) => {
        const bytes = Buffer.from(whole);
        const edges = [0, ...cuts.map((cut) => Math.min(cut, bytes.length)).toSorted((a, b) => a - b), bytes.length];
        const chunks = edges.slice(1).map((edge, i) => bytes.subarray(edges[i], edge));
        const expected = whole.split(/\r?\n/);
        if (expected.at(-1) === "") expected.pop();
        const completeLines = splitLines(chunks).filter(({ kind }) => kind === "line");
        expect(completeLines.map(({ text: one }) => one)).toEqual(expected);
      }),
    );
  });

  it("longer than 1 MiB are split into parts of whole characters", () => {
    const longLine = "é€😀".repeat(250_000);
    const splitPieces = splitLines([Buffer.from(`${longLine}\nshort`)]);
    expect(splitPieces.map(({ kind }) => kind)).toEqual(["part", "part", "line", "line"]);
    expect(
      splitPieces
        .slice(0, -1)
        .map(({ text }) => text)
        .join(""),
    ).toBe(longLine);
    for (const { text } of splitPieces) expect(Buffer.byteLength(text)).toBeLessThanOrEqual(MAX_LINE_BYTES);
    const endlessPieces = splitLines(Array.from({ length: 770 }, () => Buffer.alloc(4096, 120)));
    expect(endlessPieces.map(({ text }) => text.length)).toEqual([1_048_576, 1_048_576, 1_048_576, 8192]);
  });

  it("of many small chunks are joined in linear time", () => {
    const chunks = Array.from({ length: 500_000 }, () => Buffer.from("x"));
    const usageBefore = process.cpuUsage();
    expect(splitLines([...chunks, Buffer.from("\n")]).map(({ text }) => text.length)).toEqual([500_000]);
    expect(process.cpuUsage(usageBefore).user).toBeLessThan(5_000_000); // microseconds
  });

  it("of 200 000 characters are printed as one line, and those beyond 1 MiB as marked parts", async () => {
    const script = 'console.log(JSON.stringify({ x: "y".repeat(200_000) })); console.log("z".repeat(1_100_000))';
    const args = ["-n", "1", "--exec", process.execPath, "-e", script];
    const { stdout } = await run(["--log-prefix", "", ...args]);
    expect(JSON.parse(stdout.split("\n")[0]!)).toEqual({ x: "y".repeat(200_000) });
    const { stdout: jsonOutput } = await run(["--json", ...args]);
    const lines = jsonOutput
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as { msg?: string; kind?: string });
    const pieces = lines.filter(({ msg }) => msg !== undefined).map(({ msg, kind }) => [msg!.length, kind]);
    expect(pieces).toEqual([
      [200_008, undefined],
      [1_048_576, "part"],
      [51_424, undefined],
    ]);
  });
});

describe("the marker before an uncaught error", () => {
  it("is removed wherever chunks end, and nothing else is removed", () => {
    const filterChunks = (text: string, cuts: readonly number[]): [string, string | undefined] => {
      const filter = new UncaughtFilter("run-1");
      const bytes = Buffer.from(text);
      const edges = [0, ...cuts.map((cut) => Math.min(cut, bytes.length)).toSorted((a, b) => a - b), bytes.length];
      const filteredChunks = edges.slice(1).map((edge, i) => filter.push(bytes.subarray(edges[i], edge)));
      const precedingText = Buffer.concat([
        ...filteredChunks.map((one) => one.precedingBytes),
        filter.end(),
      ]).toString();
      const uncaughtChunks = filteredChunks.flatMap(({ uncaughtBytes: uncaught }) => uncaught ?? []);
      return [
        precedingText,
        filteredChunks.at(-1)?.uncaughtBytes === undefined ? undefined : Buffer.concat(uncaughtChunks).toString(),
      ];
    };
    const mark = uncaughtMarker("run-1");
    const textPart = fc.constantFrom("a", "é", "\u001b", "\u001b]", mark.slice(0, 9), uncaughtMarker("run-2"));
    const text = fc.array(textPart, { maxLength: 9 }).map((parts) => parts.join(""));
    fc.assert(
      fc.property(text, text, fc.boolean(), fc.array(fc.nat(200)), (before, after, isMarked, cuts) => {
        const markedText = isMarked ? `${before}${mark}${after}` : before;
        expect(filterChunks(markedText, cuts)).toEqual(isMarked ? [before, after] : [before, undefined]);
      }),
    );
    // Its first byte occurs before it, too.
    const markedText = `${mark[0]}${mark}b`;
    for (let cut = 0; cut <= markedText.length; cut++)
      expect(filterChunks(markedText, [cut]), `cut at byte ${cut}`).toEqual([mark[0], "b"]);
  });
});

describe("the console", () => {
  const line = { time: 0, node: "n0", rank: 0, attempt: 0, stream: "stdout" } as const;

  function renderEvents(events: readonly Partial<LaunchEvent>[], style: object): string {
    const screen = new PassThrough();
    const sink = new OutputSink(screen);
    const ranks = new Set([0, 1]);
    const console = new TextConsole(sink, sink, {
      shownRanks: ranks,
      prefix: "[{rank}] ",
      color: false,
      columns: 20,
      ...style,
    });
    for (const event of events)
      console.writeEvent({ ...line, type: "line", kind: "line", text: "", ...event } as LaunchEvent);
    return String(screen.read() ?? "");
  }

  it("shows the progress of rank 0 only, below the lines", () => {
    const events: Partial<LaunchEvent>[] = [
      { kind: "progress", text: "10%" },
      { kind: "progress", text: "99%", rank: 1 },
      { text: "hello", rank: 1 },
      { kind: "progress", text: "a text wider than the screen is" },
      { text: "100%" },
    ] as Partial<LaunchEvent>[];
    const clear = "\r\u001b[K";
    expect(renderEvents(events, {})).toBe(
      `[0] 10%${clear}[1] hello\n[0] 10%${clear}[0] a text wider th${clear}[0] 100%\n`,
    );
    expect(renderEvents(events, { columns: undefined })).toBe("[1] hello\n[0] 100%\n");
  });

  it("fills in the prefix and colors it by rank", () => {
    const event = { text: "x", rank: 1, stream: "stderr" } as Partial<LaunchEvent>;
    expect(renderEvents([event], { prefix: "{host}/{rank}/{attempt}/{stream}/{rank} " })).toBe("n0/1/0/stderr/1 x\n");
    expect(renderEvents([event], { prefix: "", color: true })).toBe("x\n");
    expect(renderEvents([event], { color: true })).toBe("\u001b[33m[1] \u001b[0mx\n");
  });

  it("skips lines while the reader is stopped, and reports their number when the reader continues", async () => {
    let text = "";
    let finishWrite: (() => void) | undefined = () => {};
    const slowStream = new Writable({
      write(chunk: Buffer, _encoding, done) {
        text += chunk.toString();
        if (finishWrite === undefined) done();
        else finishWrite = done;
      },
    });
    const sink = new OutputSink(slowStream, { maxUnreadBytes: 100 });
    for (let i = 0; i < 50; i++) sink.write(`line ${i} of some length\n`);
    const resume = finishWrite;
    finishWrite = undefined;
    resume();
    sink.write("after\n");
    await sink.flush();
    expect(text).toMatch(
      /line 4 .*\nmosaic-run: 4\d lines not shown because the reader was too slow; see the log files\nafter\n$/s,
    );
  });
});

describe("output of ranks", () => {
  it("keeps stdout and stderr separate, with prefixes, and includes a last line without a line break", async () => {
    const outcome = await run(["-n", "2", program("speak.mjs"), "both"]);
    expect(outcome.stdout.split("\n").toSorted()).toEqual(["", "[0] rank 0 prints", "[1] rank 1 prints"]);
    expect(outcome.stderr.split("\n").toSorted()).toEqual(["", "[0] rank 0 warns", "[1] rank 1 warns"]);
    expect((await run(["-n1", program("speak.mjs"), "no-line-end"])).stdout).toBe("[0] rank 0 stops mid\n");
    expect((await run(["-n1", "--log-prefix", "", program("speak.mjs"), "progress"])).stdout).toBe("0 at 100%\n");
  });

  it("that cannot be written to the console is reported once, and does not end the job", async () => {
    const runToFullDevice = (cli: string, args: readonly string[]): Promise<ProcessOutcome> => {
      const stdio = `["ignore", require("node:fs").openSync("/dev/full", "w"), "inherit"]`;
      const script = `process.exit(require("node:child_process").spawnSync(process.execPath, process.argv.slice(1), { stdio: ${stdio} }).status)`;
      return runNode(["-e", script, "--", cli, ...args]).outcome;
    };
    const errorText =
      "cannot write to standard output: ENOSPC: no space left on device, write; free space, or redirect it";
    for (const args of [[], ["--json"]]) {
      const options = ["-n", "2", "--log-dir", "logs", ...args, program("speak.mjs"), "both"];
      const { code, stderr } = await runToFullDevice(CLI, options);
      expect(stderr.split("\n").filter((line) => line.startsWith("mosaic-run:"))).toEqual([`mosaic-run: ${errorText}`]);
      expect(code).toBe(0);
      const runs = readdirSync(join(testDir(), "logs"));
      expect(readFileSync(join(testDir(), "logs", runs[0]!, "attempt_0/1/stdout.log"), "utf8")).toBe("rank 1 prints\n");
      rmSync(join(testDir(), "logs"), { recursive: true });
    }
    for (const args of [["--help"], ["--dry-run", "--json", program("speak.mjs")]])
      expect(await runToFullDevice(CLI, args)).toMatchObject({ code: 1, stderr: expect.stringContaining(errorText) });
    const top = join(import.meta.dirname, "../dist/top.js");
    expect(await runToFullDevice(top, ["--help"])).toMatchObject({ code: 1, stderr: `mosaic-top: ${errorText}\n` });
  });

  it("is shown for the selected ranks, and logged for all, byte for byte", async () => {
    const options = ["-n", "3", "--console-ranks", "0,2", "--log-dir", "logs", "--log-prefix", "{rank}> "];
    const { stdout } = await run([...options, program("speak.mjs"), "progress"]);
    expect(stdout.split("\n").toSorted()).toEqual(["", "0> 0 at 100%", "2> 2 at 100%"]);
    const [id = ""] = readdirSync(join(testDir(), "logs"));
    const log = join(testDir(), "logs", id, "attempt_0/1/stdout.log");
    expect(readFileSync(log, "utf8")).toBe("\r1 at 10%\r1 at 50%\r1 at 100%\n");
    expect((await run(["--console-ranks", "7", program("speak.mjs"), "both"])).code).toBe(2);
  });

  it("is one JSON object per line with --json", async () => {
    const outcome = await run(["-n", "2", "--json", program("speak.mjs"), "both"]);
    const objects = outcome.stdout
      .trim()
      .split("\n")
      .map((one) => JSON.parse(one) as Record<string, unknown>);
    expect(outcome.stderr).toBe("");
    for (const object of objects) expect(object).toMatchObject({ time: expect.any(Number), node: expect.any(String) });
    const reported = objects.filter(({ event }) => event === undefined);
    expect(reported).toHaveLength(4);
    expect(reported).toContainEqual(
      expect.objectContaining({ rank: 1, attempt: 0, stream: "stderr", msg: "rank 1 warns" }),
    );
    const events = objects.flatMap(({ event }) => event ?? []);
    expect([events[0], events.at(-1)]).toEqual(["start", "end"]);
    expect(events.filter((event) => event === "exit")).toHaveLength(2);
    expect(objects.at(-1)).toMatchObject({ result: { outcome: "succeeded", exitCode: 0 } });
  });

  it("is colored on request, and ranks get FORCE_COLOR", async () => {
    const coloredOutcome = await run(["-n1", "--color=always", program("speak.mjs"), "color"]);
    expect(coloredOutcome.stdout).toBe("\u001b[36m[0] \u001b[0mFORCE_COLOR 1\n");
    const uncoloredOutcome = await run(["-n1", "--color=always", program("speak.mjs"), "color"], {
      env: { NO_COLOR: "1" },
    });
    expect(uncoloredOutcome.stdout).toContain("FORCE_COLOR undefined\n");
    expect((await run(["-n1", program("speak.mjs"), "color"])).stdout).toBe("[0] FORCE_COLOR undefined\n");
  });

  it("of a long line is complete", async () => {
    const { stdout } = await run(["-n1", "--log-prefix=", program("speak.mjs"), "long-line"]);
    expect(stdout.replaceAll("\n", "")).toBe("é".repeat(100_000));
  });

  it("neither blocks ranks when the reader stops nor ends the job when the reader closes the stream", async () => {
    const job = mosaicRun(["-n", "2", "--log-dir", "logs", program("speak.mjs"), "endless"]);
    job.child.stdout?.pause();
    const countLines = (rank: number): number => {
      const [id = ""] = readdirSync(join(testDir(), "logs"));
      return readFileSync(join(testDir(), "logs", id, `attempt_0/${rank}/stdout.log`), "utf8").split("\n").length - 1;
    };
    const waitForLines = (numLines: number): Promise<void> =>
      waitUntil(
        () => readdirSync(testDir()).includes("logs") && countLines(0) >= numLines && countLines(1) >= numLines,
        () => `a rank has not written ${numLines} lines`,
      );
    await waitForLines(20_000);
    job.child.stdout?.destroy();
    await waitForLines(Math.max(countLines(0), countLines(1)) + 20);
    job.child.kill("SIGTERM");
    expect((await job.outcome).code).toBe(143);
  });
});
