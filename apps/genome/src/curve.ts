import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";

/** One line of a training's log. */
export interface CurvePoint {
  /** Steps taken. */
  readonly step: number;
  /** Mean cross-entropy of that step's hidden bases, nats. */
  readonly loss: number;
  /** What attention alone has sent so far, all ranks together. */
  readonly bytes: number;
  /** Multiply-adds so far, all ranks together. */
  readonly work: number;
  /** Of held-out sequences, at the steps that evaluate. */
  readonly held?: Evaluation;
}

/** What is known of a model on held-out sequences. */
export interface Evaluation {
  readonly loss: number;
  /** Planted repeats: share of them whose source is among the first two chunks chosen, in the last layer. */
  readonly recall?: number;
}

/** A log of one JSON object a line, which a restarted training continues where its checkpoint stands. */
export class LearningCurve {
  readonly #path: string;

  constructor(path: string) {
    this.#path = path;
  }

  /** Removes what came after `step`, also half a line that a killed process left. */
  truncateAfter(step: number): void {
    const kept = readLearningCurve(this.#path).filter((entry) => entry.step <= step);
    writeFileSync(this.#path, kept.map((entry) => `${JSON.stringify(entry)}\n`).join(""));
  }

  append(entry: CurvePoint): void {
    appendFileSync(this.#path, `${JSON.stringify(entry)}\n`);
  }
}

/** The lines of a log that are whole; none if there is no such file. */
export function readLearningCurve(path: string): readonly CurvePoint[] {
  if (!existsSync(path)) return [];
  const lines = readFileSync(path, "utf8").split("\n");
  return lines.slice(0, -1).map((line) => JSON.parse(line) as CurvePoint);
}
