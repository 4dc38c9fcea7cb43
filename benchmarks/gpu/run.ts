import { type ChildProcess, fork } from "node:child_process";
import { appendFileSync, existsSync, mkdirSync, readFileSync } from "node:fs";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { now } from "../src/case.ts";
import { secondsPerPart, type Case, type PartName, type Result } from "./bench.ts";

/** What a worker reports of a case. */
export interface WorkerReply {
  readonly result?: Result;
  readonly error?: string;
  /** It cannot go on. */
  readonly isSessionLost?: boolean;
}

/** Runs cases by name in a process of their own, in a new one after it broke, died or did not come back. */
export class WorkerPool implements Disposable {
  readonly #entry: string;
  readonly #args: readonly string[];
  #process: ChildProcess | undefined;

  constructor(args: readonly string[], entry: string = fileURLToPath(new URL("./gpu-worker.js", import.meta.url))) {
    this.#entry = entry;
    this.#args = args;
  }

  /** @throws Error with what went wrong; also if it took longer than `limit` seconds, and was terminated. */
  async run(name: string, timeoutSeconds: number): Promise<Result> {
    this.#process ??= fork(this.#entry, this.#args, { stdio: ["ignore", "inherit", "inherit", "ipc"] });
    const { result, error, isSessionLost } = await requestResult(this.#process, name, timeoutSeconds);
    if (isSessionLost) this.#process = undefined;
    if (result === undefined) throw new Error(error);
    return result;
  }

  [Symbol.dispose](): void {
    if (this.#process?.connected) this.#process.disconnect();
    this.#process = undefined;
  }
}

function requestResult(worker: ChildProcess, name: string, timeoutSeconds: number): Promise<WorkerReply> {
  return new Promise((resolve) => {
    let hasTimedOut = false;
    const timer = setTimeout(() => {
      hasTimedOut = true;
      worker.kill("SIGKILL");
    }, timeoutSeconds * 1000);
    const settleCase = (reply: WorkerReply): void => {
      clearTimeout(timer);
      worker.removeAllListeners("message");
      worker.removeAllListeners("exit");
      resolve(reply);
    };
    worker.once("message", (reply: WorkerReply) => settleCase(reply));
    worker.once("exit", (code, signal) => {
      const error = hasTimedOut
        ? `timed out after ${timeoutSeconds} s and was terminated`
        : `its process exited with ${signal ?? `code ${code}`}`;
      settleCase({ error, isSessionLost: true });
    });
    worker.send(name);
  });
}

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
      const result = parseResult(line);
      if (result) this.#byCase.set(result.case, result);
    }
  }

  get byCase(): ReadonlyMap<string, Result> {
    return this.#byCase;
  }

  /** A later result of the same case counts instead of the earlier one. */
  add(result: Result): void {
    this.#byCase.set(result.case, result);
    appendFileSync(this.#path, `${JSON.stringify(result, roundNumber)}\n`);
  }
}

/** The last line may be half of one, if the process was ended while it wrote. */
function parseResult(line: string): Result | undefined {
  try {
    return line === "" ? undefined : (JSON.parse(line) as Result);
  } catch {
    return undefined;
  }
}

/** Five digits: more would only repeat the noise. */
function roundNumber(_: string, value: unknown): unknown {
  return typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(5)) : value;
}

/** How a run is bounded. */
interface RunLimits {
  /** Of the parts' budgets, how much: 1 is eight minutes for all. */
  readonly share: number;
  /** Measure also what is kept. */
  readonly again: boolean;
}

/** What became of the cases. */
interface RunOutcome {
  /** Cases whose results are wrong, or that threw, with the reason. */
  readonly failures: Readonly<Record<string, string>>;
  /** Not run when the time was over; another run continues with them. */
  readonly remainingCases: readonly string[];
}

/** Runs case after case, and keeps each result at once. A part whose time is over leaves the rest of its cases. */
export async function runCases(
  cases: readonly Case[],
  run: (benchmarkCase: Case) => Promise<Result>,
  results: Results,
  runLimits: RunLimits,
): Promise<RunOutcome> {
  const failures: Record<string, string> = {};
  const remainingCases: string[] = [];
  const spentSecondsByPart = new Map<PartName, number>();
  for (const benchmarkCase of cases) {
    if (!runLimits.again && results.byCase.has(benchmarkCase.name)) continue;
    const spentPartSeconds = spentSecondsByPart.get(benchmarkCase.part) ?? 0;
    if (spentPartSeconds >= secondsPerPart[benchmarkCase.part] * runLimits.share) {
      remainingCases.push(benchmarkCase.name);
      continue;
    }
    const startSeconds = now();
    try {
      const result = await run(benchmarkCase);
      results.add(result);
      const incorrectContenders = (result["wrong"] ?? []) as readonly string[];
      if (incorrectContenders.length > 0)
        failures[benchmarkCase.name] = `wrong results of ${incorrectContenders.join(" and ")}`;
    } catch (error) {
      failures[benchmarkCase.name] = (error as Error).message;
    }
    const seconds = now() - startSeconds;
    spentSecondsByPart.set(benchmarkCase.part, spentPartSeconds + seconds);
    console.error(
      `${benchmarkCase.name.padEnd(48)}${seconds.toFixed(1).padStart(6)} s${benchmarkCase.name in failures ? "  FAILED" : ""}`,
    );
  }
  return { failures, remainingCases };
}
