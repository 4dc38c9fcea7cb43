import type { RankError } from "../job.ts";

/** What a rank's preload leaves behind for the launcher. */
export interface ErrorRecord {
  /** When it was thrown, milliseconds since the epoch. */
  readonly timeMs: number;
  readonly error: RankError;
}

/** Longer chains of causes, and longer lists of errors, are cut: the first links tell the story. */
const MOST_CAUSES = 8;
const MOST_ERRORS = 16;

/** Describes anything that can be thrown. Never throws itself: a getter that does is left out. */
export function errorRecord(thrown: unknown): ErrorRecord {
  return { timeMs: Date.now(), error: describe(thrown, MOST_CAUSES) };
}

function describe(thrown: unknown, depth: number): RankError {
  if (typeof thrown !== "object" || thrown === null)
    return { name: "Thrown", message: typeof thrown === "string" ? thrown : `${typeof thrown} ${String(thrown)}` };
  const read = (field: string): unknown => {
    try {
      return (thrown as Record<string, unknown>)[field];
    } catch {
      return undefined;
    }
  };
  const [stack, code, cause, errors] = ["stack", "code", "cause", "errors"].map(read);
  return {
    name: String(read("name") ?? "Error"),
    message: String(read("message") ?? ""),
    ...(typeof stack === "string" ? { stack } : {}),
    ...(typeof code === "string" || typeof code === "number" ? { code: String(code) } : {}),
    ...(cause !== undefined && depth > 0 ? { cause: describe(cause, depth - 1) } : {}),
    ...(Array.isArray(errors) && depth > 0
      ? { errors: errors.slice(0, MOST_ERRORS).map((error) => describe(error, depth - 1)) }
      : {}),
  };
}
