import { describe, expect, it } from "vitest";
import type { Failure, RankError } from "../src/job.ts";
import { diagnose, type RankRecord, classifyExit } from "../src/report/diagnose.ts";
import { errorRecord, parseErrorRecord } from "../src/report/error-record.ts";
import { failureLines } from "../src/report/failure-text.ts";
import { explainExit } from "../src/report/hints.ts";

const createRecord = (rank: number, overrides: Partial<RankRecord>): RankRecord => ({
  ...{ rank, local: rank, pid: 100 + rank, code: 1, signal: null, startedAt: 0, exitedAt: 1000 },
  ...{
    stoppedAt: undefined,
    isKilled: false,
    thrown: undefined,
    stderrTail: [],
    uncaught: [],
    log: `/logs/${rank}/stderr.log`,
  },
  ...overrides,
});

const createThrown = (timeMs: number, error: Partial<RankError> = {}): NonNullable<RankRecord["thrown"]> => ({
  timeMs,
  error: { name: "Error", message: "wrong", ...error },
});

const peerLost = { name: "PeerLostError", message: "rank 1 is gone" };

const diagnoseRecords = (...records: RankRecord[]): Failure | undefined =>
  diagnose(records, { number: 0, node: "n0" }, () => undefined);

describe("the first failure", () => {
  it("is undefined when every rank exited with 0 or was stopped by the launcher", () => {
    expect(diagnoseRecords(createRecord(0, { code: 0 }), createRecord(1, { code: 0 }))).toBeUndefined();
    const stoppedExit = { code: null, signal: "SIGTERM", stoppedAt: 500 } as const;
    expect(
      diagnoseRecords(createRecord(0, stoppedExit), createRecord(1, { ...stoppedExit, code: 143, signal: null })),
    ).toBeUndefined();
  });

  it("is the earliest by the time of the error, not by the time of the exit", () => {
    const slowRecord = createRecord(2, { thrown: createThrown(700), exitedAt: 1500, stoppedAt: 1200 });
    const fastRecord = createRecord(0, { thrown: createThrown(900), exitedAt: 1100 });
    expect(
      diagnoseRecords(fastRecord, createRecord(1, { signal: "SIGTERM", stoppedAt: 1200, exitedAt: 1300 }), slowRecord),
    ).toMatchObject({
      rank: 2,
      afterMs: 700,
      stopped: [1],
      secondary: [{ rank: 0, reason: "Error" }],
    });
  });

  it("has the exit code of the thrown error, even if the rank was stopped while it printed the error", () => {
    const interruptedPrint = { thrown: createThrown(700), stoppedAt: 1200, exitedAt: 1300 };
    for (const end of [{ code: null, signal: "SIGTERM" } as const, { code: 143 }, { code: 129 }]) {
      const failure = diagnoseRecords(
        createRecord(0, { ...interruptedPrint, ...end }),
        createRecord(1, { thrown: createThrown(900), exitedAt: 1100 }),
      );
      expect(failure).toMatchObject({ rank: 0, code: 1, signal: null, exitCode: 1 });
    }
    expect(diagnoseRecords(createRecord(0, { ...interruptedPrint, signal: "SIGSEGV" }))).toMatchObject({
      exitCode: 139,
    });
  });

  it("is never a rank that lost its peer if another rank failed", () => {
    const stoppedRecords = [
      createRecord(0, { thrown: createThrown(100, peerLost), exitedAt: 200 }),
      createRecord(1, {
        thrown: createThrown(100, { cause: { name: "Error", message: "", code: "ECONNRESET" } }),
        exitedAt: 200,
      }),
      createRecord(2, {
        thrown: createThrown(100, { name: "AggregateError", errors: [peerLost, peerLost] }),
        exitedAt: 200,
      }),
      createRecord(3, { stderrTail: ["PeerLostError: rank 9 is gone", "    at wait"], exitedAt: 200 }),
    ];
    const failure = diagnoseRecords(
      ...stoppedRecords,
      createRecord(9, { code: null, signal: "SIGKILL", exitedAt: 900 }),
    );
    expect(failure).toMatchObject({ rank: 9, exitCode: 137, signal: "SIGKILL" });
    expect(failure?.secondary.map(({ reason }) => reason)).toEqual(Array.from({ length: 4 }, () => "peer lost"));
    expect(diagnoseRecords(...stoppedRecords)).toMatchObject({ rank: 0 });
    const mixedRecord = createRecord(0, {
      thrown: createThrown(1, { name: "AggregateError", errors: [peerLost, { name: "E", message: "" }] }),
    });
    expect(classifyExit(mixedRecord)).toBe("failed");
  });

  it("has a hint that names the rank that exited early when all others lost a peer", () => {
    const earlyExit = createRecord(1, { code: 0, exitedAt: 100 });
    const failure = diagnoseRecords(
      createRecord(0, { thrown: createThrown(200, peerLost) }),
      earlyExit,
      createRecord(2, { thrown: createThrown(201, peerLost) }),
    );
    expect(failure?.hint).toBe("exited with 0 before the other ranks ended: rank 1");
  });

  it("excludes errors of a rank after its stop signal, but not crashes", () => {
    expect(classifyExit(createRecord(0, { stoppedAt: 500, thrown: createThrown(600) }))).toBe("stopped");
    expect(classifyExit(createRecord(0, { stoppedAt: 500, thrown: createThrown(400) }))).toBe("failed");
    expect(classifyExit(createRecord(0, { stoppedAt: 500, code: null, signal: "SIGSEGV" }))).toBe("failed");
    expect(classifyExit(createRecord(0, { stoppedAt: 500, code: 0 }))).toBe("stopped");
    const killedExit = { stoppedAt: 500, code: null, signal: "SIGKILL" } as const;
    expect(classifyExit(createRecord(0, { ...killedExit, isKilled: true }))).toBe("stopped");
    expect(classifyExit(createRecord(0, killedExit))).toBe("failed");
  });
});

describe("an error record", () => {
  it("holds name, message, code, causes and members, and ends at circular causes", () => {
    const error: Error & { code?: string; help?: string } = new RangeError("outer", {
      cause: new AggregateError([new Error("a"), 7], "both"),
    });
    error.code = "E_OUTER";
    error.help = "docs/troubleshooting.md#rangeerror";
    expect(errorRecord(error).error).toMatchObject({
      name: "RangeError",
      message: "outer",
      code: "E_OUTER",
      help: "docs/troubleshooting.md#rangeerror",
      stack: expect.stringContaining("RangeError: outer\n    at "),
      cause: { name: "AggregateError", errors: [{ message: "a" }, { name: "Thrown", message: "7" }] },
    });
    const circularError = new Error("circle");
    circularError.cause = circularError;
    expect(JSON.stringify(errorRecord(circularError)).length).toBeLessThan(50_000);
  });

  it("is created from any value that can be thrown", () => {
    const hostileError = {
      get message(): string {
        throw new Error("no");
      },
    };
    for (const thrownValue of [undefined, null, 1n, Symbol("s"), "", () => {}, hostileError, Object.create(null)]) {
      const record = errorRecord(thrownValue);
      expect(record.error).toEqual({ name: "Thrown", message: expect.stringMatching(/./) });
      expect(parseErrorRecord(JSON.stringify(record))).toEqual(record);
    }
  });

  it.each([
    [undefined, "undefined"],
    [null, "null"],
    ["", "''"],
    ["just text", "just text"],
    [7n, "7n"],
    [{ a: 1 }, "{ a: 1 }"],
    [{ message: 7, name: {} }, "{ message: 7, name: {} }"],
    [[1, 2], "[ 1, 2 ]"],
    [Object.create(null), "[Object: null prototype] {}"],
  ])("shows a thrown value that is not an error as Node prints it: %o", (thrown, message) => {
    expect(errorRecord(thrown).error).toEqual({ name: "Thrown", message });
  });
});

describe("an error file", () => {
  it("is parsed in the format of the preload", () => {
    expect(errorRecord({ name: 7, message: "x" }).error).toEqual({ name: "Error", message: "x" });
    const recordedError = errorRecord(new TypeError("bad loss", { cause: new Error("NaN") }));
    expect(parseErrorRecord(JSON.stringify(recordedError))).toEqual(recordedError);
  });

  it("is parsed in the format of PyTorch's @record, whose times are whole seconds", () => {
    const extraInfo = { py_callstack: "Traceback (most recent call last):\n  …", timestamp: "1700000000" };
    const torchRecord = { message: { message: "torch.cuda.OutOfMemoryError: too\nmuch", extraInfo } };
    expect(parseErrorRecord(JSON.stringify(torchRecord))).toEqual({
      timeMs: 1_700_000_000_999,
      error: { name: "torch.cuda.OutOfMemoryError", message: "too\nmuch", stack: extraInfo.py_callstack },
    });
    expect(parseErrorRecord('{ "message": "no words" }')?.error).toEqual({ name: "Error", message: "no words" });
  });

  it("is ignored if it has any other content", () => {
    const invalidTexts = [
      "",
      "{",
      "null",
      "7",
      '"text"',
      "[]",
      "{}",
      '{ "error": null, "timeMs": 3 }',
      '{ "message": 7 }',
    ];
    for (const text of [...invalidTexts, '{ "error": { "name": "E" } }', '{ "message": { "message": {} } }'])
      expect(parseErrorRecord(text), text).toBeUndefined();
    expect(parseErrorRecord('{ "timeMs": 3, "error": {} }')?.error).toEqual({ name: "Thrown", message: "{}" });
  });
});

describe("the failure report", () => {
  it("shows error, stack, outcomes of other ranks, log and exit code", () => {
    const failure = diagnoseRecords(
      createRecord(5, {
        thrown: {
          timeMs: 12_400,
          error: { name: "TypeError", message: "bad loss", stack: "TypeError: bad loss\n    at step (train.ts:41:9)" },
        },
        exitedAt: 12_410,
      }),
      ...[1, 3].map((rank) => createRecord(rank, { thrown: createThrown(12_500, peerLost), exitedAt: 12_510 })),
      ...[0, 2, 4, 6, 7].map((rank) =>
        createRecord(rank, { code: null, signal: "SIGTERM", stoppedAt: 12_420, exitedAt: 12_500 }),
      ),
    );
    expect(
      failureLines(failure as Failure).join("\n"),
    ).toBe(`✖ rank 5 (n0, local 5, pid 105) failed 12.4 s into attempt 0: TypeError: bad loss
    at step (train.ts:41:9)
  exit 1 · 5 ranks stopped by launcher · 2 also failed (ranks 1,3: peer lost)
  logs /logs/5/stderr.log   exit code 1`);
  });

  it("names the node of a log, and the ranks whose logs are in the log directory", () => {
    const failure = { ...(diagnoseRecords(createRecord(5, {})) as Failure), logDir: "/logs" };
    const formatLogs = (nodeRank: number | undefined): readonly string[] =>
      failureLines({ ...failure, ...(nodeRank === undefined ? {} : { nodeRank }) }).slice(-2);
    const log = "  logs /logs/5/stderr.log";
    expect(formatLogs(undefined)).toEqual(["  log directory of all ranks: /logs", `${log}   exit code 1`]);
    for (const nodeRank of [0, 1])
      expect(formatLogs(nodeRank)).toEqual([
        "  log directory of the ranks of node 0: /logs",
        `${log} on n0   exit code 1`,
      ]);
  });

  it.each([
    [
      { code: null, signal: "SIGSEGV" },
      "native code crashed (SIGSEGV); run this rank under gdb; if it is a Node program, rebuild its native addons for this version of Node",
    ],
    [{ code: null, signal: "SIGFPE" }, "native code crashed (SIGFPE)"],
    [{ code: null, signal: "SIGABRT", stderrTail: ["FATAL ERROR: heap out of memory"] }, "the JavaScript heap is full"],
    [{ code: 134, stderrTail: ["FATAL ERROR: heap out of memory"] }, "the JavaScript heap is full"],
    [{ code: null, signal: "SIGKILL" }, "killed by another process"],
    [{ code: 126, stderrTail: ["spawn EMFILE"] }, "too many open files"],
    [{ code: 13 }, "a top-level await never settled"],
  ] as const)("has a hint for a rank that ended with %o", (end, hint) => {
    expect(explainExit(createRecord(0, end), Infinity)).toContain(hint);
  });

  it("has a hint for a port in use, also as the cause of the error", () => {
    const inUse = { name: "Error", message: "listen EADDRINUSE: address in use", code: "EADDRINUSE" };
    for (const error of [inUse, { name: "Error", message: "cannot listen", cause: inUse }])
      expect(explainExit(createRecord(0, { thrown: createThrown(1, error) }), 0)).toBe(
        "the port is in use by another process; listen on port 0 to get a free one",
      );
    expect(explainExit(createRecord(0, { thrown: createThrown(1) }), 0)).toBeUndefined();
  });

  it.each([
    { code: 1 },
    { code: null, signal: "SIGTERM" },
    { code: null, signal: "SIGABRT" },
    { code: 126 },
    { code: 1, stderrTail: ["FATAL ERROR: heap out of memory"] },
  ] as const)("has no hint for a rank that ended with %o", (end) => {
    expect(explainExit(createRecord(0, end), 0)).toBeUndefined();
  });

  it("omits output that the console has shown, except for a rank that could not be started", () => {
    const formatReport = (overrides: Partial<RankRecord>): readonly string[] =>
      failureLines(diagnoseRecords(createRecord(0, { stderrTail: ["words"], ...overrides })) as Failure, true);
    expect(formatReport({})).not.toContain("    │ words");
    expect(formatReport({ pid: 0 })).toContain("    │ words");
  });

  it("includes the printed source line only for errors without a stack frame in user code", () => {
    const extractSource = (frame: string, print: readonly string[]): unknown => {
      const stack = `SyntaxError: no\n    at ${frame}`;
      const error = { name: "SyntaxError", message: "no", stack };
      const uncaught = [...print, "", ...stack.split("\n"), "", "Node.js v20"];
      return diagnoseRecords(createRecord(0, { thrown: createThrown(1, error), uncaught, stderrTail: uncaught }));
    };
    const print = ["file:///b.mjs:2", "const b = ;", "          ^"];
    expect(extractSource("compile (node:internal/vm:1:2)", print)).toMatchObject({ source: print, stderrTail: [] });
    expect(extractSource("<anonymous>", print)).toMatchObject({ source: print });
    expect(extractSource("eval (<anonymous>:1:1)", print)).toMatchObject({ source: print });
    expect(extractSource("compile (node:internal/vm:1:2)", ["node:internal/vm:1", "  throw"])).not.toHaveProperty(
      "source",
    );
    for (const frame of ["<anonymous> (/a/typed.ts:6:41)", "file:///a.mjs:1:2", "f (a.js:1:2)"])
      expect(extractSource(frame, print)).not.toHaveProperty("source");
  });

  it("includes the source line that precedes the error in its stack", () => {
    const extractSource = (stack: string): unknown => {
      const error = { name: "SyntaxError", message: "no", stack };
      return diagnoseRecords(createRecord(0, { thrown: createThrown(1, error), uncaught: stack.split("\n") }));
    };
    const excerpt = ["/b.cjs:2", "const b = ;", "          ^"];
    const stack = `${excerpt.join("\n")}\n\nSyntaxError: no\n    at compile (node:internal/vm:1:2)`;
    expect(extractSource(stack)).toMatchObject({ source: excerpt });
    expect(extractSource(`${stack}\n    at require (/a.cjs:1:1)`)).toMatchObject({ source: excerpt });
    expect(extractSource(stack.replace("/b.cjs", "node:internal/b"))).not.toHaveProperty("source");
    expect(extractSource(stack.slice(stack.indexOf("SyntaxError")))).not.toHaveProperty("source");
  });

  it("has the last lines of stderr unless Node printed the error, or the error has a stack frame in user code", () => {
    const stderrTail = ["loading"];
    const tailOf = (frame: string, uncaught: readonly string[]): readonly string[] | undefined => {
      const thrown = createThrown(1, { stack: `Error: wrong\n    at ${frame}` });
      return diagnoseRecords(createRecord(0, { thrown, uncaught, stderrTail }))?.stderrTail;
    };
    expect(tailOf("f (a.mjs:1:2)", [])).toEqual([]);
    expect(tailOf("f (node:internal/vm:1:2)", [])).toEqual(stderrTail);
    expect(tailOf("f (node:internal/vm:1:2)", ["Error: wrong"])).toEqual([]);
    expect(diagnoseRecords(createRecord(0, { stderrTail }))?.stderrTail).toEqual(stderrTail);
  });

  it("refers to the documentation of an error, and truncates long messages, stacks and lists of causes", () => {
    const report = (error: Partial<RankError>): string => {
      const root = createRecord(5, { thrown: createThrown(1, error) });
      return failureLines(diagnoseRecords(root) as Failure).join("\n");
    };
    expect(report({ help: "docs/troubleshooting.md#shapeerror" })).toMatch(
      /\n {2}causes and remedies: docs\/troubleshooting\.md#shapeerror\n/,
    );
    expect(report({})).not.toContain("causes and remedies");
    const cause = { name: "RangeError", message: "inner", stack: "RangeError: inner\n    at g (b.mjs:2:3)" };
    expect(report({ cause, errors: [{ name: "TypeError", message: "other" }] })).toContain(
      "\n  caused by RangeError: inner\n    at g (b.mjs:2:3)\n  caused by TypeError: other\n",
    );
    const longReport = report({ message: "x".repeat(1_000_000) });
    expect(longReport).toMatch(/: Error: x{1993} … \(998007 more characters in \/logs\/5\/stderr\.log\)\n/);
    const lines = report({ message: Array.from({ length: 500 }, (_, i) => `line ${i}`).join("\n") });
    expect(lines).toMatch(/\nline 19 … \(\d+ more characters in/);
    const stack = Array.from({ length: 500 }, (_, i) => `    at f${i} (a.mjs:${i}:1)`).join("\n");
    const causes = Array.from({ length: 16 }, () => ({ name: "Error", message: "inner", stack }));
    const deepReport = report({ stack, errors: causes });
    expect(deepReport.split("\n").length).toBeLessThan(120);
    expect(deepReport).toMatch(/\n {4}… \d+ more lines in \/logs\/5\/stderr\.log\n/);
    expect(report({ message: `${"a".repeat(1992)}😀b` })).not.toMatch(/[\ud800-\udbff](?![\udc00-\udfff])/);
    // Lines of a message that look like stack frames are not treated as frames.
    const message = "bad\n    at nowhere";
    const singleReport = report({ message, stack: `Error: ${message}\n    at f (a.mjs:1:1)` });
    expect(singleReport.match(/at nowhere/g)).toHaveLength(1);
  });
});
