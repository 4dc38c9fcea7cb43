import { rmSync } from "node:fs";
import { constants } from "node:os";
import { resolve } from "node:path";
import { formatAddress } from "./agent/network.ts";
import type { AttemptDecision, StopRequest } from "./restart-policy.ts";
import { type Assignment, type Coordinator, LocalCoordinator } from "./coordinator.ts";
import type { Command } from "./entry.ts";
import { rankVariables, createRankEnvironment } from "./environment.ts";
import type { EventListener, Failure, LaunchOptions, LostNode, Result } from "./job.ts";
import { applyLogRetention, createLogDirError, temporaryLogDirectory } from "./output/log-retention.ts";
import { createDirectory } from "./output/rank-log.ts";
import { makeTraceDirectory, writeTracePage } from "./output/trace-page.ts";
import { type LaunchPlan, resolvePlan } from "./launch-plan.ts";
import { createDeathSignalWrapper, NodeRanks } from "./ranks/node-ranks.ts";
import { OrphanGuard } from "./ranks/guard.ts";
import { SignalProbe } from "./ranks/signal-probe.ts";
import { classifyExit, type RankRecord } from "./report/diagnose.ts";
import { isSlurmStep } from "./options/sources.ts";
import { explainExit, countOomKills } from "./report/hints.ts";

/** Exit code when a node was lost. Schedulers may retry the job. */
const EX_TEMPFAIL = 75;
/** As in timeout(1). */
const TIMED_OUT_EXIT_CODE = 124;
/**
 * Signals within this time count as one: systemd sends SIGTERM and SIGHUP together, and npm forwards signals that the
 * process group has received as well. SIGINT (Ctrl-C) is sent by a person and always counts.
 */
const SIGNAL_DEBOUNCE_MS = 500;

/** Handle of a running job. */
export interface Job {
  /**
   * Handles a signal as if this process had received it. SIGUSR1 and SIGUSR2 are forwarded to the ranks. The first
   * other signal is sent to all ranks and starts the grace period. After it, SIGINT kills the ranks, and so does any
   * other signal that is at least 0.5 s later than the previous one, except SIGTERM in a SLURM step.
   */
  signal(name: NodeJS.Signals): void;
  /**
   * Result of the job, when none of its processes is left. Rejects with RendezvousError if the port is in use or nodes
   * are missing.
   */
  readonly done: Promise<Result>;
}

/**
 * Starts this node's ranks of a job. Resolves when the ranks of all nodes and the processes that they started have
 * exited. A failing rank is a result, not a rejection. UsageError and RendezvousError mean that the job did not start.
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

/**
 * Starts a job like `launch` and returns a handle at once, to signal the job and to await its result.
 *
 * @example
 * ```ts
 * import { start } from "@mosaic/launcher";
 * const job = start({ entry: "sleep", args: ["60"], exec: true });
 * job.signal("SIGTERM");
 * const { exitCode } = await job.done;
 * exitCode; // => 143
 * ```
 * @throws UsageError before any process is started.
 */
export function start(options: LaunchOptions): Job {
  const plan = resolvePlan(options);
  createRankEnvironment(plan, rankVariables(plan, placeholderAssignment(plan), 0, ""));
  const onEvent = options.onEvent ?? ((): void => {});
  const emit: EventListener = (event) => onEvent({ ...event, time: Date.now(), node: plan.node });
  const job = new RunningJob(plan, emit);
  const abort = (): void => job.signal("SIGTERM");
  options.abort?.addEventListener("abort", abort);
  const done = job.run().finally(() => options.abort?.removeEventListener("abort", abort));
  if (options.abort?.aborted === true) abort();
  return { signal: (name) => job.signal(name), done };
}

/** Returns the assignment of a job that has not started, for `--dry-run` and for the checks before the start. */
export function placeholderAssignment(plan: LaunchPlan): Parameters<typeof rankVariables>[1] {
  const { nodes, nproc, masterPort, runId } = plan;
  const secretFields = { tokenFile: "<private file>", agent: "<private socket>" };
  if (nodes !== undefined) {
    // Assumes that all nodes start as many ranks as this one.
    const { host, port } = nodes.endpoint;
    const rankFields = { worldSize: nproc * nodes.max, firstRank: nproc * nodes.nodeRank, groupRank: nodes.nodeRank };
    const addressFields = {
      host,
      port,
      store: `tls://${formatAddress(host, port)}`,
      nodeAddress: "<address of this node>",
    };
    return { runId, attempt: 0, ...rankFields, groupWorldSize: nodes.max, ...addressFields, ...secretFields };
  }
  const attemptFields = { attempt: 0, worldSize: nproc, firstRank: 0, groupRank: 0, groupWorldSize: 1 };
  const host = "127.0.0.1";
  return {
    runId,
    ...attemptFields,
    host,
    port: masterPort,
    store: `${host}:${masterPort}`,
    nodeAddress: host,
    ...secretFields,
  };
}

interface JobComponents {
  readonly coordinator: Coordinator;
  readonly orphanGuard: OrphanGuard;
  readonly wrapCommand: (command: Command) => Command;
  readonly signalProbe: SignalProbe | undefined;
}

/** The cause of a job's end. At most one field is set. */
interface AttemptResult {
  readonly failure?: Failure;
  readonly lost?: LostNode;
  readonly stop?: StopRequest | undefined;
}

class RunningJob {
  readonly #plan: LaunchPlan;
  readonly #emit: EventListener;
  readonly #startedAt = Date.now();
  /** In a job on several nodes, the run id in the path is known only after the first assignment. */
  #logDir: string;
  #nodeRanks: NodeRanks | undefined;
  #coordinator: Coordinator | undefined;
  #stopRequest: StopRequest | undefined;
  /** Whether another node was signalled to end the job and this node has not been signalled yet. */
  #isRemotelyStopped = false;
  /** Time at which ranks were last signalled to end or killed, on the clock of `performance.now()`. */
  #lastSignalAt = Number.NEGATIVE_INFINITY;
  /** Assignment of the last attempt that has ended. */
  #tracedAssignment: Assignment | undefined;
  /** Ends the pause before a restart. */
  #cancelBackoff: () => void = () => {};

  constructor(plan: LaunchPlan, emit: EventListener) {
    this.#plan = plan;
    this.#emit = emit;
    this.#logDir =
      plan.logDir === undefined ? temporaryLogDirectory(plan.runId) : resolve(plan.cwd, plan.logDir, plan.runId);
  }

  signal(name: NodeJS.Signals): void {
    if (name === "SIGUSR1" || name === "SIGUSR2") return this.#nodeRanks?.forward(name);
    if (this.#stopRequest === undefined) this.#requestStop({ reason: name, signal: name, outcome: "cancelled" });
    // srun and similar programs signal all nodes. This signal is the one that another node has already reported.
    else if (this.#isRemotelyStopped) this.#isRemotelyStopped = false;
    else if (name === "SIGINT") this.#kill("interrupted again");
    // SLURM signals a cancelled job several times, and kills the remaining processes itself after KillWait.
    else if (name === "SIGTERM" && isSlurmStep(process.env)) return;
    else if (performance.now() - this.#lastSignalAt > SIGNAL_DEBOUNCE_MS) this.#kill(`${name} during the grace period`);
    else return;
    this.#lastSignalAt = performance.now();
  }

  async run(): Promise<Result> {
    if (this.#plan.nodes === undefined) this.#makeDirectories();
    try {
      const result = await this.#runGuarded();
      if (result.outcome === "succeeded") this.#removeLogs();
      else if (this.#plan.logDir === undefined) applyLogRetention(this.#logDir);
      const { traceDir } = this.#plan;
      if (traceDir !== undefined && this.#tracedAssignment)
        this.#emit(await writeTracePage(traceDir, this.#tracedAssignment));
      this.#emit({ type: "end", result });
      return result;
    } catch (error) {
      // Without an earlier attempt, no output refers to the logs.
      if (this.#nodeRanks === undefined || this.#nodeRanks.attempt < 1) this.#removeLogs();
      throw error;
    }
  }

  #removeLogs(): void {
    if (this.#plan.logDir === undefined) rmSync(this.#logDir, { recursive: true, force: true });
  }

  async #runGuarded(): Promise<Result> {
    const { runId, timeoutMs } = this.#plan;
    const seconds = (timeoutMs ?? 0) / 1000;
    const timeoutStopRequest = { reason: `timeout of ${seconds} s`, signal: "SIGTERM", outcome: "timed-out" } as const;
    const timer =
      timeoutMs === undefined ? undefined : setTimeout(() => this.#requestStop(timeoutStopRequest), timeoutMs);
    try {
      const deathSignalWrapper = createDeathSignalWrapper();
      // If the coordinator rejects, the process that tests setpriv exits first.
      const coordinator = await this.#openCoordinator().finally(() => deathSignalWrapper);
      const wrapCommand = await deathSignalWrapper;
      this.#coordinator = coordinator;
      if (this.#stopRequest !== undefined) coordinator.stop(this.#stopRequest);
      const orphanGuard = new OrphanGuard(runId, coordinator.privateDir);
      const signalProbe = SignalProbe.start();
      try {
        return await this.#runAttempts({ coordinator, orphanGuard, wrapCommand, signalProbe });
      } finally {
        signalProbe?.[Symbol.dispose]();
        await coordinator.close();
        await orphanGuard.close();
      }
    } finally {
      clearTimeout(timer);
    }
  }

  async #openCoordinator(): Promise<Coordinator> {
    const { nodes } = this.#plan;
    if (nodes === undefined) return LocalCoordinator.open(this.#plan);
    const control = {
      emit: this.#emit,
      end: (request: StopRequest) => {
        this.#isRemotelyStopped ||= this.#stopRequest === undefined;
        this.#requestStop(request);
      },
      isEnding: () => this.#stopRequest !== undefined,
      kill: (reason: string) => this.#nodeRanks?.kill(reason),
      stopRanks: (reason: string) => this.#nodeRanks?.stop(reason, "SIGTERM", this.#plan.failureGraceMs),
    };
    // The modules for several nodes are loaded only when needed.
    if (nodes.nodeRank > 0)
      return new (await import("./nodes/member.ts")).MemberCoordinator(this.#plan, nodes, control);
    return (await import("./nodes/root.ts")).RootCoordinator.open(this.#plan, nodes, control);
  }

  #requestStop(stopRequest: StopRequest): void {
    if (this.#stopRequest !== undefined) return;
    this.#stopRequest = stopRequest;
    this.#coordinator?.stop(stopRequest);
    this.#stopRanks(stopRequest);
    this.#cancelBackoff();
  }

  #kill(reason: string): void {
    this.#coordinator?.kill(reason);
    this.#nodeRanks?.kill(reason);
  }

  #stopRanks({ reason, signal }: StopRequest): void {
    // Under a scheduler the grace period ends before the allocation, so that the report is still written.
    const remainingMs = this.#plan.jobEndsAt - Date.now() - 2000;
    this.#nodeRanks?.stop(reason, signal, Math.max(0, Math.min(this.#plan.graceMs, remainingMs)), true);
  }

  async #runAttempts(components: JobComponents): Promise<Result> {
    const { coordinator } = components;
    let records: readonly RankRecord[] = [];
    for (let attempts = 1; ; attempts++) {
      const initialOomKills = countOomKills();
      const assignment = await coordinator.beginAttempt();
      if (assignment === undefined)
        return this.#createResult(records, Math.max(1, attempts - 1), { stop: this.#stopRequest });
      this.#nodeRanks ??= this.#createNodeRanks(assignment, components);
      if (this.#stopRequest !== undefined) return this.#createResult(records, attempts, { stop: this.#stopRequest });
      records = await this.#nodeRanks.run(assignment);
      this.#tracedAssignment = assignment;
      const decision = await coordinator.endAttempt(records, (record) => explainExit(record, initialOomKills));
      const reportedDecision = this.#reportDecision(decision);
      if (decision.restartInMs === undefined) return this.#createResult(records, attempts, reportedDecision);
      await this.#backoff(assignment.attempt + 1, decision.restartInMs);
      if (this.#stopRequest !== undefined) return this.#createResult(records, attempts, { stop: this.#stopRequest });
    }
  }

  /** Creates the directories for traces and logs before any rank is started. */
  #makeDirectories(): void {
    if (this.#plan.traceDir !== undefined) makeTraceDirectory(this.#plan.traceDir);
    try {
      createDirectory(this.#logDir);
    } catch (error) {
      throw createLogDirError(this.#plan, `${this.#logDir} cannot be created`, error);
    }
  }

  /** Creates this node's ranks after the first assignment, and emits the start event. */
  #createNodeRanks(assignment: Assignment, { coordinator, ...components }: JobComponents): NodeRanks {
    const { logDir, cwd, nodes } = this.#plan;
    const { runId, worldSize, store } = assignment;
    if (nodes !== undefined) {
      // The run id is the same on all nodes, so that in a shared file system all ranks log to one directory.
      if (logDir !== undefined) this.#logDir = resolve(cwd, logDir, runId);
      this.#makeDirectories();
    }
    this.#emit({ type: "start", runId, worldSize, store, logDir: this.#logDir });
    const onFailing = (rank: number): void => coordinator.reportFailing(rank);
    const onSucceeded = (rank: number): void => coordinator.reportSucceeded(rank);
    const listeners = { emit: this.#emit, onFailing, onSucceeded };
    return new NodeRanks({ plan: this.#plan, logDir: this.#logDir, ...listeners, ...components });
  }

  /** Reports the cause of an attempt's end. On node 0, adds the location of the logs to a failure. */
  #reportDecision(decision: AttemptDecision): AttemptDecision {
    if (decision.lost !== undefined) this.#emit({ type: "node-lost", lost: decision.lost });
    if (decision.failure === undefined) return decision;
    const logFields = { logDir: this.#logDir, areLogsTemporary: this.#plan.logDir === undefined };
    const isRemote = (this.#plan.nodes?.nodeRank ?? 0) > 0;
    const failure = { ...decision.failure, ...(isRemote ? {} : logFields) };
    this.#emit({ type: "failure", failure, ...(isRemote ? { remote: isRemote } : {}) });
    return { ...decision, failure };
  }

  async #backoff(attempt: number, delayMs: number): Promise<void> {
    this.#emit({ type: "restart", attempt, delayMs });
    await new Promise<void>((endBackoff) => {
      const timer = setTimeout(endBackoff, delayMs);
      this.#cancelBackoff = () => {
        clearTimeout(timer);
        endBackoff();
      };
    });
    this.#cancelBackoff = () => {};
  }

  #createResult(records: readonly RankRecord[], attempts: number, { failure, lost, stop }: AttemptResult): Result {
    const outcome = failure === undefined && lost === undefined ? (stop?.outcome ?? "succeeded") : "failed";
    const exitCodes = { succeeded: 0, failed: failure?.exitCode ?? EX_TEMPFAIL, "timed-out": TIMED_OUT_EXIT_CODE };
    const exitCode = outcome === "cancelled" ? 128 + constants.signals[stop?.signal ?? "SIGTERM"] : exitCodes[outcome];
    const areLogsRemoved = outcome === "succeeded" && this.#plan.logDir === undefined;
    return {
      ...{ outcome, exitCode, runId: this.#plan.runId, attempts },
      seconds: (Date.now() - this.#startedAt) / 1000,
      ranks: records.map((record) => ({
        ...{ rank: record.rank, pid: record.pid, code: record.code, signal: record.signal },
        afterMs: record.exitedAt - record.startedAt,
        verdict: classifyExit(record),
      })),
      ...(failure === undefined ? {} : { failure }),
      ...(lost === undefined ? {} : { lost }),
      ...(areLogsRemoved ? {} : { logDir: this.#logDir }),
    };
  }
}
