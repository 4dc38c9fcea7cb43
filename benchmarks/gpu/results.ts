import { appendFileSync, existsSync, mkdirSync, readFileSync } from "node:fs";
import { dirname } from "node:path";
import type { Result } from "./bench.ts";

/** What was measured so far, in a file of JSON lines: a run that was cut short goes on where it stopped. */
export class Results {
  readonly #path: string;
  readonly #byCase = new Map<string, Result>();

  constructor(path: string) {
    this.#path = path;
    mkdirSync(dirname(path), { recursive: true });
    if (!existsSync(path)) return;
    const text = readFileSync(path, "utf8");
    // What was cut off must not take the next line with it.
    if (text !== "" && !text.endsWith("\n")) appendFileSync(path, "\n");
    for (const line of text.split("\n")) {
      const result = parsed(line);
      if (result) this.#byCase.set(result.case, result);
    }
  }

  get byCase(): ReadonlyMap<string, Result> {
    return this.#byCase;
  }

  /** A later result of the same case counts instead of the earlier one. */
  add(result: Result): void {
    this.#byCase.set(result.case, result);
    appendFileSync(this.#path, `${JSON.stringify(result, short)}\n`);
  }
}

/** The last line may be half of one, if the process was ended while it wrote. */
function parsed(line: string): Result | undefined {
  try {
    return line === "" ? undefined : (JSON.parse(line) as Result);
  } catch {
    return undefined;
  }
}

/** Five digits: more would only repeat the noise. */
function short(_: string, value: unknown): unknown {
  return typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(5)) : value;
}
