import { inspect } from "node:util";
import type { RankError } from "../job.ts";

/** Error that a rank records for the launcher, written by the preload of a Node rank or by PyTorch's `@record`. */
export interface ErrorRecord {
  /** Time at which the error was thrown, in milliseconds since the epoch. */
  readonly timeMs: number;
  readonly error: RankError;
}

/** Longer chains of causes and longer lists of errors are truncated. */
const MAX_CAUSES = 8;
const MAX_AGGREGATE_ERRORS = 16;

/** Creates a record of any thrown value. Never throws. Fields whose getters throw are omitted. */
export function errorRecord(thrown: unknown): ErrorRecord {
  return { timeMs: Date.now(), error: toRankError(thrown, MAX_CAUSES) };
}

/**
 * Parses a rank's error file, which any program may have written. Returns the preload's record or the record of
 * PyTorch's `@record`; undefined for any other text.
 */
export function parseErrorRecord(text: string): ErrorRecord | undefined {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (!isObject(parsed)) return undefined;
  if (isObject(parsed.error) && typeof parsed.timeMs === "number")
    return { timeMs: parsed.timeMs, error: toRankError(parsed.error, MAX_CAUSES) };
  return parseTorchRecord(parsed.message);
}

/** Parses `{ message: "ValueError: bad", extraInfo: { py_callstack, timestamp } }`, or only the message. */
function parseTorchRecord(torchError: unknown): ErrorRecord | undefined {
  const { message, extraInfo } = isObject(torchError) ? torchError : { message: torchError, extraInfo: undefined };
  if (typeof message !== "string") return undefined;
  const [, name = "Error", text = message] = /^([A-Za-z_][\w.]*): (.*)$/s.exec(message) ?? [];
  const { py_callstack: stack, timestamp } = isObject(extraInfo) ? extraInfo : {};
  const seconds = Number(timestamp ?? Number.NaN);
  // The timestamp is rounded down to whole seconds. The end of that second is the latest possible time.
  const timeMs = Number.isFinite(seconds) ? seconds * 1000 + 999 : Date.now();
  return { timeMs, error: { name, message: text, ...(typeof stack === "string" ? { stack } : {}) } };
}

const isObject = (x: unknown): x is Readonly<Record<string, unknown>> => typeof x === "object" && x !== null;

function toRankError(thrown: unknown, depth: number): RankError {
  if (typeof thrown !== "object" || thrown === null) return { name: "Thrown", message: formatThrown(thrown) };
  const readField = (field: string): unknown => {
    try {
      return (thrown as Record<string, unknown>)[field];
    } catch {
      return undefined;
    }
  };
  const [name, message, stack, code, help] = ["name", "message", "stack", "code", "help"].map(readField);
  const [cause, errors] = ["cause", "errors"].map(readField);
  if (typeof message !== "string" && typeof stack !== "string")
    return { name: "Thrown", message: formatThrown(thrown) };
  return {
    name: typeof name === "string" ? name : "Error",
    message: typeof message === "string" ? message : "",
    ...(typeof stack === "string" ? { stack } : {}),
    ...(typeof code === "string" || typeof code === "number" ? { code: String(code) } : {}),
    ...(typeof help === "string" ? { help } : {}),
    ...(cause !== undefined && depth > 0 ? { cause: toRankError(cause, depth - 1) } : {}),
    ...(Array.isArray(errors) && depth > 0
      ? { errors: errors.slice(0, MAX_AGGREGATE_ERRORS).map((error) => toRankError(error, depth - 1)) }
      : {}),
  };
}

/**
 * Formats a thrown value that is not an error as Node does: `undefined`, `7`, `{ code: 3 }`. A non-empty string is
 * unchanged.
 */
function formatThrown(thrown: unknown): string {
  if (typeof thrown === "string" && thrown !== "") return thrown;
  try {
    return inspect(thrown, { customInspect: false });
  } catch {
    return "an object that cannot be formatted";
  }
}
