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

/** Limits in characters. JSON has up to 6 bytes for a character. */
const MAX_NAME_LENGTH = 200;
const MAX_MESSAGE_LENGTH = 2000;
const MAX_LINE_LENGTH = 500;
const MAX_REPORT_LINES = 30;

/** How much of a report is kept: the number of lines, the depth of causes, and the length of stacks in characters. */
interface Truncation {
  readonly lines: number;
  readonly depth: number;
  readonly stackLength: number;
}

const FULL_TRUNCATION: Truncation = { lines: MAX_REPORT_LINES, depth: 4, stackLength: 8000 };
const SHORT_TRUNCATIONS: readonly Truncation[] = [
  { lines: 10, depth: 1, stackLength: 8000 },
  { lines: 0, depth: 0, stackLength: 8000 },
  { lines: 0, depth: 0, stackLength: 2000 },
];

/** Encodes a report as JSON that fits into a frame. Long texts are truncated, and the deepest causes are omitted. */
export function encodeReport({ record, hint }: RankReport): Buffer {
  const { thrown } = record;
  return encodeTruncated("failure report of a rank", [FULL_TRUNCATION, ...SHORT_TRUNCATIONS], (truncation) => ({
    record: {
      ...record,
      stderrTail: truncateLines(record.stderrTail, truncation),
      uncaught: truncateLines(record.uncaught, truncation),
      thrown: thrown === undefined ? undefined : { ...thrown, error: truncateError(thrown.error, truncation) },
    },
    hint,
  }));
}

/** Encodes the first of several truncations as JSON that fits into a frame. */
function encodeTruncated(
  subject: string,
  truncations: readonly Truncation[],
  truncate: (truncation: Truncation) => object,
): Buffer {
  let byteCount = 0;
  for (const truncation of truncations) {
    const json = Buffer.from(JSON.stringify(truncate(truncation)));
    byteCount = json.length;
    if (byteCount <= LIMITS.value) return json;
  }
  throw new Error(`${subject}: expected at most ${LIMITS.value} bytes, received ${byteCount} bytes`);
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
  return encodeTruncated("result of an attempt", SHORT_TRUNCATIONS, (truncation) => ({
    ...decision,
    failure: {
      ...{ ...failure, stopped: [], secondary: [] },
      ...{ stderrTail: truncateLines(stderrTail, truncation), source: truncateLines(source, truncation) },
      ...(error === undefined ? {} : { error: truncateError(error, truncation) }),
    },
  }));
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

const truncateLines = (lines: readonly string[], { lines: count }: Truncation): readonly string[] =>
  count === 0 ? [] : lines.slice(-count).map((line) => line.slice(0, MAX_LINE_LENGTH));

function truncateError(error: RankError, truncation: Truncation): RankError {
  const { name, message, stack, code, help, cause, errors } = error;
  const { depth, stackLength } = truncation;
  const inner = { ...truncation, depth: depth - 1 };
  return {
    name: name.slice(0, MAX_NAME_LENGTH),
    message: message.slice(0, MAX_MESSAGE_LENGTH),
    ...(stack === undefined ? {} : { stack: stack.slice(0, stackLength) }),
    ...(code === undefined ? {} : { code: code.slice(0, MAX_NAME_LENGTH) }),
    ...(help === undefined ? {} : { help: help.slice(0, MAX_NAME_LENGTH) }),
    ...(cause === undefined || depth === 0 ? {} : { cause: truncateError(cause, inner) }),
    ...(errors === undefined || depth === 0
      ? {}
      : { errors: errors.slice(0, 4).map((innerError) => truncateError(innerError, inner)) }),
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
