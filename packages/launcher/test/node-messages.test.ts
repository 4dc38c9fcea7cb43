import { describe, expect, it } from "vitest";
import { LIMITS, ProtocolError } from "../src/agent/wire.ts";
import type { Failure, RankError } from "../src/job.ts";
import { decodeDecision, decodeReport, encodeDecision, encodeReport } from "../src/nodes/records.ts";
import { findMismatch, waitingMessage, type Registration } from "../src/nodes/registration.ts";
import type { RankRecord } from "../src/report/diagnose.ts";

const registration: Registration = {
  ...{ kind: "register", version: 2, launcher: "0.1.0", runtime: "22.18.0", job: "none", nodeRank: 1, minNodes: 2 },
  ...{ maxNodes: 2, nproc: 2, host: "b", command: "train.ts", digest: "9f" },
};

it("compares the settings that must match on all launchers, and lists missing nodes", () => {
  const describeMismatch = (changes: Partial<Registration>): string =>
    findMismatch({ ...registration, nodeRank: 0, host: "a" }, { ...registration, ...changes })?.message ?? "none";
  expect(describeMismatch({})).toBe("none");
  expect(describeMismatch({ runtime: "22.1.0" })).toBe("none");
  expect(describeMismatch({ runtime: "20.20.0" })).toMatch(
    /node 1 \(b\) uses 20\.20\.0, node 0 \(a\) uses 22\.18\.0; use the same major version/,
  );
  for (const other of [{ launcher: "0.2.0" }, { version: 3 }])
    expect(describeMismatch(other)).toMatch(
      /launcher version mismatch: node 1 \(b\) uses \S+, node 0 \(a\) uses 0\.1\.0; install the same version/,
    );
  expect(describeMismatch({ nodeRank: 2 })).toMatch(/--node-rank: expected an integer from 0 to 1/);
  expect(describeMismatch({ minNodes: 1 })).toMatch(/--nnodes mismatch: node 1 \(b\) uses 1:2, node 0 \(a\) uses 2;/);
  expect(describeMismatch({ maxNodes: 3 })).toMatch(/--nnodes mismatch: node 1 \(b\) uses 2:3, node 0 \(a\) uses 2;/);
  expect(describeMismatch({ digest: "other", command: "other.ts" })).toMatch(
    /command mismatch: node 1 \(b\) runs "other.ts", node 0 \(a\) runs ".*"; use the same script and arguments/,
  );
  const others = [{ job: "other" }, { minNodes: 1 }].map((changes) =>
    findMismatch(registration, { ...registration, ...changes }),
  );
  expect(others.map((mismatch) => mismatch?.isOtherJob)).toEqual([true, false]);
  expect(waitingMessage(new Set([0, 20]), 21)).toBe("2/21 nodes; missing n1, n2, n3, n4, n5, n6, n7, n8 and 11 more");
});

it("converts times in reports of other nodes to its own clock, and truncates long reports", () => {
  const createError = (depth: number): RankError => ({
    ...{ name: "E", message: "m".repeat(60_000), stack: "s".repeat(60_000) },
    ...(depth === 0 ? {} : { cause: createError(depth - 1) }),
  });
  const lines = Array.from({ length: 30 }, () => "é".repeat(60_000));
  const record: RankRecord = {
    ...{ rank: 3, local: 1, pid: 7, code: 1, signal: null, startedAt: 1000, exitedAt: 2000, stoppedAt: undefined },
    ...{
      isKilled: true,
      thrown: { timeMs: 1900, error: createError(6) },
      stderrTail: lines,
      uncaught: lines,
      log: "/l",
    },
  };
  const bytes = encodeReport({ record, hint: "h" });
  expect(bytes.length).toBeLessThanOrEqual(65_536);
  const decodedReport = decodeReport(bytes, 500);
  expect(decodedReport).toMatchObject({
    hint: "h",
    record: { rank: 3, code: 1, startedAt: 1500, exitedAt: 2500, stoppedAt: undefined, isKilled: true },
  });
  expect(decodedReport.record.thrown).toMatchObject({ timeMs: 2400, error: { name: "E" } });
  for (const invalidText of [
    "",
    "[]",
    "{}",
    '{"record":{}}',
    JSON.stringify({ record: { ...record, signal: "SIGNONE" } }),
  ])
    expect(() => decodeReport(Buffer.from(invalidText), 0)).toThrow(ProtocolError);
  for (const invalidText of ["", "[]", '{"failure":{}}', '{"restartInMs":"1"}'])
    expect(() => decodeDecision(Buffer.from(invalidText))).toThrow(ProtocolError);
});

describe("the report of an error with long texts", () => {
  const createError = (depth: number, text: string): RankError => ({
    ...{ name: text, message: text, stack: text, code: text, help: "docs/troubleshooting.md#peerlosterror" },
    ...(depth === 0 ? {} : { cause: createError(depth - 1, text), errors: Array(5).fill(createError(0, text)) }),
  });
  const createRecord = (error: RankError): RankRecord => ({
    ...{ rank: 3, local: 1, pid: 7, code: 1, signal: null, startedAt: 0, exitedAt: 1, stoppedAt: undefined },
    ...{ isKilled: false, thrown: { timeMs: 1, error }, stderrTail: [], uncaught: [], log: "/l" },
  });
  const createFailure = (error: RankError): Failure => ({
    ...{ attempt: 0, node: "n1", rank: 3, local: 1, pid: 7, afterMs: 5, code: 1, signal: null, exitCode: 1 },
    ...{ error, stderrTail: Array(30).fill(error.stack), log: "/l", stopped: [], secondary: [] },
  });

  // Characters of 1, 3 and 6 bytes in JSON.
  it.each(["m", "語", "\u0001"])("fits into a frame if its texts consist of %j", (character) => {
    const error = createError(3, character.repeat(60_000));
    const report = encodeReport({ record: createRecord(error), hint: undefined });
    const decision = encodeDecision({ failure: createFailure(error), restartInMs: 1 });
    for (const bytes of [report, decision]) expect(bytes.length).toBeLessThanOrEqual(LIMITS.value);
    expect(decodeDecision(decision).failure?.error?.message).toMatch(new RegExp(`^${character}{100}`));
  });

  it("has the last lines of the output, the outer causes and the first errors", () => {
    const stderrTail = Array.from({ length: 40 }, (_, i) => `${i} ${"m".repeat(600)}`);
    const record = { ...createRecord(createError(8, "m")), stderrTail };
    const { record: decodedRecord } = decodeReport(encodeReport({ record, hint: undefined }), 0);
    expect(decodedRecord.stderrTail).toEqual(stderrTail.slice(-30).map((line) => line.slice(0, 500)));
    const causes = [];
    for (let error = decodedRecord.thrown?.error; error !== undefined; error = error.cause) causes.push(error);
    expect(causes).toHaveLength(5);
    expect(causes[0]!.errors).toHaveLength(4);
    const failure = { ...createFailure(createError(0, "m")), stopped: [1, 2], secondary: [] };
    const decodedFailure = decodeDecision(encodeDecision({ failure })).failure!;
    expect(decodedFailure.stopped).toEqual([]);
    expect(decodedFailure.stderrTail).toHaveLength(10);
  });

  it("has at most 30 lines, even if another version of the launcher sends more", () => {
    const record = { ...createRecord(createError(0, "m")), uncaught: [] };
    const text = JSON.stringify({ record: { ...record, stderrTail: Array(31).fill("line") } });
    expect(decodeReport(Buffer.from(text), 0).record.stderrTail).toHaveLength(30);
  });

  it("has the section of the documentation that the error names", () => {
    const error = createError(1, "m");
    const decodedError = decodeReport(encodeReport({ record: createRecord(error), hint: undefined }), 0).record.thrown
      ?.error;
    expect(decodedError).toMatchObject({ help: error.help, cause: { help: error.help } });
  });
});
