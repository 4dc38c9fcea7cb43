import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";
import { UsageError } from "./command-line.ts";

/** What every line of a log has: steps taken. */
export interface LogLine {
  readonly step: number;
}

/** A log of one JSON object a line, which a restarted training continues where its checkpoint stands. */
export class LearningCurve<Point extends LogLine> {
  readonly #path: string;

  constructor(path: string) {
    this.#path = path;
  }

  /** Removes what came after `step`, also half a line that a killed process left. */
  truncateAfter(step: number): void {
    const keptEntries = readLearningCurve<Point>(this.#path).filter((entry) => entry.step <= step);
    writeFileSync(this.#path, keptEntries.map((entry) => `${JSON.stringify(entry)}\n`).join(""));
  }

  append(entry: Point): void {
    appendFileSync(this.#path, `${JSON.stringify(entry)}\n`);
  }
}

/**
 * The lines of a log that are whole; none if there is no such file.
 *
 * @throws UsageError for a line that is no object of JSON with its steps, with its place.
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
