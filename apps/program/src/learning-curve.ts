import { appendFileSync, existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { UsageError } from "./command-line.ts";

/** A line of a log: at least the number of completed steps. */
export interface LogLine {
  readonly step: number;
}

/** A log with one JSON object per line. A restarted training continues it at the step of its checkpoint. */
export class LearningCurve<Point extends LogLine> {
  readonly #path: string;

  constructor(path: string) {
    this.#path = path;
  }

  /** Removes all lines after `step`, including an incomplete line of a killed process. */
  truncateAfter(step: number): void {
    const keptEntries = readLearningCurve<Point>(this.#path).filter((entry) => entry.step <= step);
    // Renamed, because a process that is killed here, or a full disk, must not lose the earlier lines.
    const temporaryPath = `${this.#path}.tmp`;
    writeFileSync(temporaryPath, keptEntries.map((entry) => `${JSON.stringify(entry)}\n`).join(""));
    renameSync(temporaryPath, this.#path);
  }

  append(entry: Point): void {
    appendFileSync(this.#path, `${JSON.stringify(entry)}\n`);
  }
}

/**
 * Returns the complete lines of a log, or none if the file does not exist.
 *
 * @throws UsageError with the path and line number of a line that is not a JSON object with a step.
 */
export function readLearningCurve<Point extends LogLine>(path: string): readonly Point[] {
  if (!existsSync(path)) return [];
  const lines = readFileSync(path, "utf8").split("\n");
  return lines.slice(0, -1).map((line, index) => parseLine<Point>(line, `${path}, line ${index + 1}`));
}

function parseLine<Point extends LogLine>(line: string, where: string): Point {
  const [value, cause] = parseJson(line);
  if (Number.isSafeInteger((value as Partial<LogLine> | null | undefined)?.step)) return value as Point;
  const received = line.length > 60 ? `${line.slice(0, 60)}…` : line;
  throw new UsageError(
    `${where}: expected a JSON object with its step, received ${JSON.stringify(received)}; remove the line, or restore the file from a copy`,
    { cause },
  );
}

function parseJson(text: string): readonly [value: unknown, cause?: unknown] {
  try {
    return [JSON.parse(text)];
  } catch (error) {
    return [undefined, error];
  }
}
