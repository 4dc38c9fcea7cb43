import { rmSync } from "node:fs";
import { constants } from "node:os";
import { resolve } from "node:path";
import { LocalCoordinator } from "./coordinator.ts";
import { rankContract, rankEnvironment } from "./environment.ts";
import { UsageError } from "./errors.ts";
import type { Failure, LaunchOptions, Result, Emit } from "./job.ts";
import { retainLogs, temporaryLogs } from "./output/log-retention.ts";
import { makeFolder } from "./output/rank-log.ts";
import { type LaunchPlan, resolvePlan } from "./launch-plan.ts";
import { parentDeathSignal, NodeAgent } from "./ranks/agent.ts";
import { Guard } from "./ranks/guard.ts";
import { diagnose, type RankRecord, classifyExit } from "./report/diagnose.ts";
import { hintFor, countOomKills } from "./report/hints.ts";

/** As in timeout(1). */
const EXIT_TIMED_OUT = 124;
/** EX_CONFIG: what a rank exits with for an error that no restart resolves. */
const EX_CONFIG = 78;
const MAX_BACKOFF_MS = 30_000;
/**
 * Signals within this time count once: systemd sends SIGTERM and SIGHUP together, npm and a process group pass on what they
 * also receive. Ctrl-C is pressed by a person, and counts each time.
 */
const SIGNAL_DEBOUNCE_MS = 500;

/** A job under way. */
export interface Job {
  /**
   * Treats a signal as if this process had received it: USR1 and USR2 are passed on; the first other one signals every
   * rank to end and starts the grace; SIGINT after it kills, as does any other 0.5 s or more after the last.
   */
  signal(name: NodeJS.Signals): void;
  /** What became of it, when nothing of it is left. Rejects with RendezvousError when the store's port is taken. */
  readonly done: Promise<Result>;
}

/**
 * Starts the ranks of a job on this machine and resolves when all of them, and all they started, are gone. A failing
 * rank is a result, not a rejection: UsageError and RendezvousError mean that the job never began.
 *
 * @example
 * ```ts
 * import { launch } from "@mosaic/launcher";
 * const { exitCode } = await launch({ entry: "true", exec: true, nprocPerNode: 2 });
 * exitCode; // => 0
 * ```
 */
export async function launch(options: LaunchOptions): Promise<Result> {
  return start(options).done;
}

/** Like `launch`, with a handle on the job. Throws UsageError before anything is started. */
export function start(options: LaunchOptions): Job {
  const plan = resolvePlan(options);
  rankEnvironment(plan, rankContract(plan, placeholderAssignment(plan), 0, ""));
  const onEvent = options.onEvent ?? ((): void => {});
  const emit: Emit = (event) => onEvent({ ...event, time: Date.now(), node: plan.node });
  const job = new RunningJob(plan, emit);
  const abort = (): void => job.signal("SIGTERM");
  options.abort?.addEventListener("abort", abort);
  const done = job.run().finally(() => options.abort?.removeEventListener("abort", abort));
  if (options.abort?.aborted === true) abort();
  return { signal: (name) => job.signal(name), done };
}

/** The assignment of a job that has not been started: what `--dry-run` shows, and what is checked first. */
export function placeholderAssignment(plan: LaunchPlan): Parameters<typeof rankContract>[1] {
  const place = { attempt: 0, worldSize: plan.nproc, firstRank: 0, groupRank: 0, groupWorldSize: 1 };
  return { ...place, host: "127.0.0.1", port: plan.masterPort, tokenFile: "<private file>", agent: "<private socket>" };
}

/** Why a job ends before its ranks do. */
interface StopRequest {
  readonly reason: string;
  readonly signal: NodeJS.Signals;
  readonly outcome: "cancelled" | "timed-out";
}

class RunningJob {
  readonly #plan: LaunchPlan;
  readonly #emit: Emit;
  readonly #startedAt = Date.now();
  readonly #logDir: string;
  #agent: NodeAgent | undefined;
  #stopRequest: StopRequest | undefined;
  /** When ranks were last signalled to end, or were killed. */
  #signalledAt = Number.NEGATIVE_INFINITY;
  /** Ends the pause before a restart. */
  #cancelBackoff: () => void = () => {};

  constructor(plan: LaunchPlan, emit: Emit) {
    this.#plan = plan;
    this.#emit = emit;
    this.#logDir = plan.logDir === undefined ? temporaryLogs(plan.runId) : resolve(plan.cwd, plan.logDir, plan.runId);
  }

  signal(name: NodeJS.Signals): void {
    if (name === "SIGUSR1" || name === "SIGUSR2") return this.#agent?.forward(name);
    if (this.#stopRequest === undefined) this.#end({ reason: name, signal: name, outcome: "cancelled" });
    else if (name === "SIGINT") this.#agent?.kill("interrupted again");
    else if (performance.now() - this.#signalledAt > SIGNAL_DEBOUNCE_MS) this.#agent?.kill(`${name} during the grace`);
    else return;
    this.#signalledAt = performance.now();
  }

  async run(): Promise<Result> {
    makeLogDir(this.#logDir);
    try {
      const result = await this.#runGuarded();
      if (result.outcome === "succeeded") this.#removeLogs();
      else if (this.#plan.logDir === undefined) retainLogs(this.#logDir);
      this.#emit({ type: "end", result });
      return result;
    } catch (error) {
      // No output would name them.
      this.#removeLogs();
      throw error;
    }
  }

  #removeLogs(): void {
    if (this.#plan.logDir === undefined) rmSync(this.#logDir, { recursive: true, force: true });
  }

  async #runGuarded(): Promise<Result> {
    const { runId, nproc, timeoutMs } = this.#plan;
    const [coordinator, wrap] = await Promise.all([LocalCoordinator.open(this.#plan), parentDeathSignal()]);
    const guard = new Guard(runId, coordinator.privateDir);
    const seconds = (timeoutMs ?? 0) / 1000;
    const timeout = { reason: `timeout of ${seconds} s`, signal: "SIGTERM", outcome: "timed-out" } as const;
    const timer = timeoutMs === undefined ? undefined : setTimeout(() => this.#end(timeout), timeoutMs);
    try {
      this.#emit({ type: "start", runId, worldSize: nproc, store: coordinator.store, logDir: this.#logDir });
      this.#agent = new NodeAgent({ plan: this.#plan, logDir: this.#logDir, guard, emit: this.#emit, wrap });
      return await this.#attempts(this.#agent, coordinator);
    } finally {
      clearTimeout(timer);
      await coordinator.close();
      await guard.close();
    }
  }

  #end(stopRequest: StopRequest): void {
    if (this.#stopRequest !== undefined) return;
    this.#stopRequest = stopRequest;
    this.#stopRanks(stopRequest);
    this.#cancelBackoff();
  }

  #stopRanks({ reason, signal }: StopRequest): void {
    // Under a scheduler the grace ends before the allocation does, so that the report is still written.
    const left = this.#plan.jobEndsAt - Date.now() - 2000;
    this.#agent?.stop(reason, signal, Math.max(0, Math.min(this.#plan.graceMs, left)));
  }

  async #attempts(agent: NodeAgent, coordinator: LocalCoordinator): Promise<Result> {
    let records: readonly RankRecord[] = [];
    let attempt = 0;
    for (let soon = 0; this.#stopRequest === undefined; attempt++) {
      const oomKillsBefore = countOomKills();
      const assignment = await coordinator.beginAttempt(attempt);
      if (this.#stopRequest !== undefined) break;
      const beganAt = Date.now();
      records = await agent.run(assignment);
      const place = { number: attempt, node: this.#plan.node };
      const found = diagnose(records, place, (root) => hintFor(root, oomKillsBefore));
      const logs = { logDir: this.#logDir, logsExpire: this.#plan.logDir === undefined };
      const failure = found && { ...found, ...logs };
      if (failure === undefined || this.#cancelled(failure)) break;
      soon = Date.now() - beganAt < this.#plan.minUptimeMs ? soon + 1 : 0;
      const refusal = this.#noRestartReason(failure, soon);
      const reported = refusal === undefined || refusal === "" ? failure : { ...failure, noRestartReason: refusal };
      this.#emit({ type: "failure", failure: reported });
      if (refusal !== undefined) return this.#result(records, attempt + 1, reported);
      await this.#backoff(attempt);
      if (this.#stopRequest !== undefined) return this.#result(records, attempt + 1);
    }
    return this.#result(records, attempt + 1);
  }

  /** A rank that died of the very signal that ends the job was signalled by another process first: no failure. */
  #cancelled({ signal }: Failure): boolean {
    return signal !== null && signal === this.#stopRequest?.signal;
  }

  /** Why there is no further attempt: undefined when there is one, empty when that needs no explanation. */
  #noRestartReason(failure: Failure, soon: number): string | undefined {
    const { maxRestarts, minUptimeMs } = this.#plan;
    if (failure.attempt >= maxRestarts || this.#stopRequest !== undefined) return "";
    if (failure.exitCode === EX_CONFIG) return `exit code ${EX_CONFIG} (EX_CONFIG) is not retried`;
    if (soon >= 2) return `two failures in a row, each within ${minUptimeMs / 1000} s of its start (--min-uptime)`;
    return undefined;
  }

  async #backoff(attempt: number): Promise<void> {
    const delayMs = Math.min(this.#plan.restartBackoffMs * 2 ** attempt, MAX_BACKOFF_MS);
    this.#emit({ type: "restart", attempt: attempt + 1, delayMs });
    await new Promise<void>((wake) => {
      const timer = setTimeout(wake, delayMs);
      this.#cancelBackoff = () => {
        clearTimeout(timer);
        wake();
      };
    });
    this.#cancelBackoff = () => {};
  }

  #result(records: readonly RankRecord[], attempts: number, failure?: Failure): Result {
    const stopRequest = failure === undefined ? this.#stopRequest : undefined;
    const outcome = failure === undefined ? (stopRequest?.outcome ?? "succeeded") : "failed";
    const codes = { succeeded: 0, failed: failure?.exitCode ?? 1, "timed-out": EXIT_TIMED_OUT };
    const exitCode =
      outcome === "cancelled" ? 128 + constants.signals[stopRequest?.signal ?? "SIGTERM"] : codes[outcome];
    const temporary = outcome === "succeeded" && this.#plan.logDir === undefined;
    return {
      ...{ outcome, exitCode, runId: this.#plan.runId, attempts },
      seconds: (Date.now() - this.#startedAt) / 1000,
      ranks: records.map((record) => ({
        ...{ rank: record.rank, pid: record.pid, code: record.code, signal: record.signal },
        afterMs: record.exitedAt - record.startedAt,
        verdict: classifyExit(record),
      })),
      ...(failure === undefined ? {} : { failure }),
      ...(temporary ? {} : { logDir: this.#logDir }),
    };
  }
}

function makeLogDir(path: string): void {
  try {
    makeFolder(path);
  } catch (error) {
    throw new UsageError(`--log-dir: ${path} cannot be created: ${(error as Error).message}`);
  }
}
