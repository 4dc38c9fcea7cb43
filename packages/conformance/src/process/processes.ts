import { defineOptions, option, type OptionsOf } from "@mosaic/core";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import type { Case } from "../check.ts";

/** Rendezvous of one job. It is disposed at the end of the case. */
export interface Job extends AsyncDisposable {
  /** Returns the variables that a launcher would set in a rank's environment. */
  env(rank: number): Readonly<Record<string, string>>;
}

/** Program and rendezvous of ranks that are processes. */
export const rankProgramOptions = defineOptions("RankProcesses", {
  /** Path of the module that each rank runs in Node.js. It calls `runRank`. */
  script: option.string(),
  /** Opens the rendezvous. */
  openJob: option.custom("a function (size) that starts a job", option.isFunction<(size: number) => Promise<Job>>),
});
/** Program of each rank, and its rendezvous. */
export type RankProgram = OptionsOf<typeof rankProgramOptions>;

/** Variables that are added to this process's environment. */
export type Environment = Readonly<Record<string, string>>;

/**
 * Processes of one test, and their rendezvous. Both are terminated at the end of the test, even if it fails.
 *
 * @example
 * ```ts no-run
 * import { RankProcesses } from "@mosaic/conformance";
 * await using processes = new RankProcesses({
 *   script: "build/rank.js",
 *   openJob: async (size) => ({
 *     env: (rank) => ({ RANK: `${rank}`, WORLD_SIZE: `${size}`, MASTER_ADDR: "127.0.0.1", MASTER_PORT: "29500" }),
 *     async [Symbol.asyncDispose]() {},
 *   }),
 * });
 * const ranks = await processes.startAll(2, "my scenario");
 * await ranks[0]!.waitForEvent("closed");
 * ```
 */
export class RankProcesses implements AsyncDisposable {
  readonly #program: RankProgram;
  readonly #startedRanks: RankProcess[] = [];
  readonly #jobs: Job[] = [];

  constructor(program: RankProgram) {
    this.#program = rankProgramOptions.parse(program);
  }

  async openJob(size: number): Promise<Job> {
    const job = await this.#program.openJob(size);
    this.#jobs.push(job);
    return job;
  }

  start(scenario: string, env: Environment): RankProcess {
    const rankProcess = startRank(this.#program.script, scenario, env);
    this.#startedRanks.push(rankProcess);
    return rankProcess;
  }

  /** Starts all ranks of a new job. */
  async startAll(size: number, scenario: string, extraEnvironment: Environment = {}): Promise<readonly RankProcess[]> {
    const job = await this.openJob(size);
    return Array.from({ length: size }, (_, rank) => this.start(scenario, { ...job.env(rank), ...extraEnvironment }));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const each of this.#startedRanks) each.kill();
    await Promise.all(this.#startedRanks.map((each) => each.exitStatus));
    for (const job of this.#jobs) await job[Symbol.asyncDispose]();
  }
}

/** Returns a case that starts processes. */
export function processCase(
  program: RankProgram,
  name: string,
  body: (processes: RankProcesses) => Promise<void>,
): Case {
  return {
    name,
    async run() {
      await using processes = new RankProcesses(program);
      await body(processes);
    },
  };
}

/** A line of JSON that a rank printed. */
export interface RankEvent {
  readonly event: string;
  readonly rank: number;
  readonly [detail: string]: unknown;
}

/** A rank in its own process. */
export interface RankProcess {
  readonly pid: number;
  /** Resolves with the first event of this name. Rejects if the rank exits without one. */
  waitForEvent(event: string): Promise<RankEvent>;
  /** Writes the line for which the failing rank waits. */
  proceed(): void;
  kill(): void;
  /** Exit code of the process, or the signal that terminated it. */
  readonly exitStatus: Promise<number | string>;
}

/**
 * Starts a rank in its own process. `script` runs the scenario and prints events as lines of JSON. `env` is added to
 * this process's environment.
 */
export function startRank(script: string, scenario: string, env: Readonly<Record<string, string>>): RankProcess {
  const child = spawn(process.execPath, [script, scenario], {
    env: { ...process.env, ...env },
    stdio: ["pipe", "pipe", "inherit"],
  });
  const events: RankEvent[] = [];
  const listeners = new Set<() => void>();
  createInterface(child.stdout).on("line", (line) => {
    events.push(JSON.parse(line) as RankEvent);
    for (const listener of listeners) listener();
  });
  const exitStatus = once(child, "close").then(([code, signal]) => (code as number | null) ?? (signal as string));
  return {
    pid: child.pid!,
    exitStatus,
    proceed: () => child.stdin.write("go\n"),
    kill: () => child.kill("SIGKILL"),
    waitForEvent(event) {
      return new Promise((resolve, reject) => {
        const resolveIfFound = () => {
          const matchingEvent = events.find((each) => each.event === event);
          if (matchingEvent) resolve(matchingEvent);
        };
        listeners.add(resolveIfFound);
        resolveIfFound();
        void exitStatus.then((code) => {
          resolveIfFound();
          reject(
            new Error(`${scenario}: exited with ${code} before event "${event}"; received ${JSON.stringify(events)}`),
          );
        });
      });
    },
  };
}
