import { type ChildProcess, fork } from "node:child_process";
import { appendFileSync, existsSync, mkdirSync, readFileSync } from "node:fs";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { now } from "../src/case.ts";
import { secondsPerPart, type Case, type PartName, type Result } from "./bench.ts";

/** Reply of a worker for one case. */
export interface WorkerReply {
  readonly result?: Result;
  readonly error?: string;
  /** The worker cannot run further cases. */
  readonly isSessionLost?: boolean;
}

/**
 * Runs cases by name in a worker process. Starts a new worker after the previous one lost its session, exited or timed
 * out.
 */
export class WorkerPool implements Disposable {
  readonly #entry: string;
  readonly #args: readonly string[];
  #process: ChildProcess | undefined;

  constructor(args: readonly string[], entry: string = fileURLToPath(new URL("./gpu-worker.js", import.meta.url))) {
    this.#entry = entry;
    this.#args = args;
  }

  /**
   * @throws Error with the reason, also if the case takes longer than `timeoutSeconds` and its worker is terminated.
   */
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

/** Results so far, in a file of JSON lines. A run that was cut short continues where it stopped. */
export class Results {
  readonly #path: string;
  readonly #byCase = new Map<string, Result>();

  constructor(path: string) {
    this.#path = path;
    mkdirSync(dirname(path), { recursive: true });
    if (!existsSync(path)) return;
    const text = readFileSync(path, "utf8");
    // The next result must not be appended to a partial line.
    if (text !== "" && !text.endsWith("\n")) appendFileSync(path, "\n");
    for (const line of text.split("\n")) {
      const result = parseResult(line);
      if (result) this.#byCase.set(result.case, result);
    }
  }

  get byCase(): ReadonlyMap<string, Result> {
    return this.#byCase;
  }

  /** Stores a result. It replaces an earlier result of the same case. */
  add(result: Result): void {
    this.#byCase.set(result.case, result);
    appendFileSync(this.#path, `${JSON.stringify(result, roundNumber)}\n`);
  }
}

/** Parses a line. The last line may be partial if the process was terminated while it wrote. */
function parseResult(line: string): Result | undefined {
  try {
    return line === "" ? undefined : (JSON.parse(line) as Result);
  } catch {
    return undefined;
  }
}

/** Rounds to five digits. More would be noise. */
function roundNumber(_: string, value: unknown): unknown {
  return typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(5)) : value;
}

/** Limits of a run. */
interface RunLimits {
  /** Scale of the time budgets of the parts. 1 is eight minutes in total. */
  readonly share: number;
  /** Also run cases that have stored results. */
  readonly again: boolean;
}

/** Outcome of a run. */
interface RunOutcome {
  /** Cases whose results are wrong, or that threw, with the reason. */
  readonly failures: Readonly<Record<string, string>>;
  /** Cases that were not run within the time budget. Another run continues with them. */
  readonly remainingCases: readonly string[];
}

/**
 * Runs the cases in order, and stores each result at once. The remaining cases of a part are skipped when its budget is
 * spent.
 */
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
