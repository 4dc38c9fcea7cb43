import type { AttemptDecision } from "../restart-policy.ts";
import { constants } from "node:os";
import { LIMITS, ProtocolError } from "../agent/wire.ts";
import type { RankError } from "../job.ts";
import type { RankRecord } from "../report/diagnose.ts";
import { parseErrorRecord } from "../report/error-record.ts";

/** Record of a rank's exit on another node, with the hint that its node has found. */
export interface RankReport {
  readonly record: RankRecord;
  readonly hint: string | undefined;
}

const MAX_TEXT_LENGTH = 2000;
const MAX_REPORT_LINES = 30;
const MAX_STACK_LENGTH = 8000;

/** Encodes a report as JSON that fits into a frame. Long texts are truncated, and the deepest causes are omitted. */
export function encodeReport({ record, hint }: RankReport): Buffer {
  let byteCount = 0;
  for (const [lines, depth] of [
    [MAX_REPORT_LINES, 4],
    [10, 1],
    [0, 0],
  ] as const) {
    const { thrown } = record;
    const truncatedRecord = {
      ...record,
      stderrTail: truncateLines(record.stderrTail, lines),
      uncaught: truncateLines(record.uncaught, lines),
      thrown: thrown === undefined ? undefined : { ...thrown, error: truncateError(thrown.error, depth) },
    };
    const json = Buffer.from(JSON.stringify({ record: truncatedRecord, hint }));
    byteCount = json.length;
    if (byteCount <= LIMITS.value) return json;
  }
  throw new Error(`failure report of a rank: expected at most ${LIMITS.value} bytes, received ${byteCount} bytes`);
}

/** Decodes a report of another node, whose clock is `offsetMs` behind the clock of this node. Throws ProtocolError. */
export function decodeReport(bytes: Buffer, offsetMs: number): RankReport {
  const { record, hint } = parseObject(bytes);
  const fields = toObject(record);
  const parseTime = (name: string): number => parseNumberField(fields, name) + offsetMs;
  const thrown = fields.thrown === undefined ? undefined : parseErrorRecord(JSON.stringify(fields.thrown));
  return {
    record: {
      rank: parseNumberField(fields, "rank"),
      local: parseNumberField(fields, "local"),
      pid: parseNumberField(fields, "pid"),
      code: fields.code === null ? null : parseNumberField(fields, "code"),
      signal: fields.signal === null ? null : parseSignalField(fields),
      startedAt: parseTime("startedAt"),
      exitedAt: parseTime("exitedAt"),
      stoppedAt: fields.stoppedAt === undefined ? undefined : parseTime("stoppedAt"),
      isKilled: fields.isKilled === true,
      thrown: thrown === undefined ? undefined : { ...thrown, timeMs: thrown.timeMs + offsetMs },
      stderrTail: parseLinesField(fields, "stderrTail"),
      uncaught: parseLinesField(fields, "uncaught"),
      log: parseTextField(fields, "log"),
    },
    hint: hint === undefined ? undefined : String(hint),
  };
}

/**
 * Encodes the result of an attempt as JSON that fits into a frame. The lists of other ranks are omitted: only node 0
 * reports them.
 */
export function encodeDecision(decision: AttemptDecision): Buffer {
  const { failure } = decision;
  if (failure === undefined) return Buffer.from(JSON.stringify(decision));
  const { error, stderrTail, source = [] } = failure;
  const truncatedFailure = {
    ...{
      ...failure,
      stopped: [],
      secondary: [],
      stderrTail: truncateLines(stderrTail, 10),
      source: truncateLines(source, 10),
    },
    ...(error === undefined ? {} : { error: truncateError(error, 1) }),
  };
  return Buffer.from(JSON.stringify({ ...decision, failure: truncatedFailure }));
}

/** Decodes the decision of node 0. Throws ProtocolError. */
export function decodeDecision(bytes: Buffer): AttemptDecision {
  const decision = parseObject(bytes);
  for (const field of ["failure", "lost", "stop"] as const)
    if (decision[field] !== undefined) toObject(decision[field]);
  if (decision.failure !== undefined) parseNumberField(toObject(decision.failure), "exitCode");
  if (decision.restartInMs !== undefined) parseNumberField(decision, "restartInMs");
  return decision;
}

const truncateLines = (lines: readonly string[], count: number): readonly string[] =>
  count === 0 ? [] : lines.slice(-count).map((line) => line.slice(0, MAX_TEXT_LENGTH / 4));

function truncateError({ name, message, stack, code, cause, errors }: RankError, depth: number): RankError {
  return {
    name: name.slice(0, MAX_TEXT_LENGTH),
    message: message.slice(0, MAX_TEXT_LENGTH),
    ...(stack === undefined ? {} : { stack: stack.slice(0, MAX_STACK_LENGTH) }),
    ...(code === undefined ? {} : { code }),
    ...(cause === undefined || depth === 0 ? {} : { cause: truncateError(cause, depth - 1) }),
    ...(errors === undefined || depth === 0
      ? {}
      : { errors: errors.slice(0, 4).map((innerError) => truncateError(innerError, depth - 1)) }),
  };
}

type JsonObject = Readonly<Record<string, unknown>>;

function parseObject(bytes: Buffer): JsonObject {
  try {
    return toObject(JSON.parse(bytes.toString()));
  } catch {
    throw new ProtocolError("expected a JSON object, received invalid JSON");
  }
}

function toObject(value: unknown): JsonObject {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as JsonObject;
  throw new ProtocolError(`expected a JSON object, received ${JSON.stringify(value)}`);
}

function parseNumberField(fields: JsonObject, name: string): number {
  const value = fields[name];
  if (typeof value === "number" && Number.isFinite(value)) return value;
  throw new ProtocolError(`expected a number in the report field ${name}, received ${JSON.stringify(value)}`);
}

function parseTextField(fields: JsonObject, name: string): string {
  const value = fields[name];
  if (typeof value === "string") return value;
  throw new ProtocolError(`expected a string in the report field ${name}, received ${JSON.stringify(value)}`);
}

function parseSignalField(fields: JsonObject): NodeJS.Signals {
  const name = parseTextField(fields, "signal");
  if (Object.hasOwn(constants.signals, name)) return name as NodeJS.Signals;
  throw new ProtocolError(`expected a signal name in the report, received ${name}`);
}

function parseLinesField(fields: JsonObject, name: string): readonly string[] {
  const value = fields[name];
  return Array.isArray(value) ? value.slice(0, MAX_REPORT_LINES).map(String) : [];
}
