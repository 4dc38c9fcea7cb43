import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";

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

/** The lines of a log that are whole; none if there is no such file. */
export function readLearningCurve<Point extends LogLine>(path: string): readonly Point[] {
  if (!existsSync(path)) return [];
  const lines = readFileSync(path, "utf8").split("\n");
  return lines.slice(0, -1).map((line) => JSON.parse(line) as Point);
}
