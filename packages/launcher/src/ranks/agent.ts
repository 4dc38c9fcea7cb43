import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { isMainThread } from "node:worker_threads";
import type { Agent, Assignment } from "../coordinator.ts";
import { type Command, findProgram } from "../entry.ts";
import { rankVariables, createRankEnvironment } from "../environment.ts";
import { UsageError } from "../errors.ts";
import type { EventListener } from "../job.ts";
import { createLogDirError } from "../output/log-retention.ts";
import { RankLog } from "../output/rank-log.ts";
import type { LaunchPlan } from "../launch-plan.ts";
import type { RankRecord } from "../report/diagnose.ts";
import { TOO_MANY_FILES_HINT } from "../report/hints.ts";
import type { OrphanGuard } from "./guard.ts";
import { listJobPids, sendSignal } from "./process-table.ts";
import { Rank } from "./rank.ts";
import type { SignalProbe } from "./signal-probe.ts";

/** Killed processes that are still running after this long are stuck in the kernel, where nothing more can be done. */
const ORPHAN_TIMEOUT_MS = 2000;

export interface NodeAgentOptions {
  readonly plan: LaunchPlan;
  readonly logDir: string;
  readonly orphanGuard: OrphanGuard;
  readonly emit: EventListener;
  /** A rank has failed; the others are signalled to end next. */
  readonly onFailing: (rank: number) => void;
  /** A rank has exited with 0. */
  readonly onSucceeded: (rank: number) => void;
  /** What is really executed for a rank's command: see `createDeathSignalWrapper`. */
  readonly wrapCommand: (command: Command) => Command;
  /** Under a scheduler that may signal ranks itself. */
  readonly signalProbe: SignalProbe | undefined;
}

/** Runs this node's ranks for one attempt: starts them together, watches, ends them together. */
export class NodeAgent implements Agent {
  readonly #plan: LaunchPlan;
  readonly #logDir: string;
  readonly #orphanGuard: OrphanGuard;
  readonly #emit: EventListener;
  readonly #onFailing: (rank: number) => void;
  readonly #onSucceeded: (rank: number) => void;
  readonly #wrapCommand: (command: Command) => Command;
  readonly #signalProbe: SignalProbe | undefined;
  #ranks: readonly Rank[] = [];
  /** Those whose process or whose group may still be there. */
  readonly #runningRanks = new Set<Rank>();
  #attempt = 0;
  #deadline: NodeJS.Timeout | undefined;

  constructor(options: NodeAgentOptions) {
    const { plan, logDir, orphanGuard, emit, onFailing, onSucceeded, wrapCommand, signalProbe } = options;
    this.#signalProbe = signalProbe;
    this.#plan = plan;
    this.#logDir = logDir;
    this.#orphanGuard = orphanGuard;
    this.#emit = emit;
    this.#onFailing = onFailing;
    this.#onSucceeded = onSucceeded;
    this.#wrapCommand = wrapCommand;
  }

  /** Resolves when every rank of the attempt, and everything it started, is gone. */
  async run(assignment: Assignment): Promise<readonly RankRecord[]> {
    this.#attempt = assignment.attempt;
    const ranks: Rank[] = [];
    this.#ranks = ranks;
    let spawnError: unknown;
    try {
      for (let localRank = 0; localRank < this.#plan.nproc; localRank++) ranks.push(this.#spawn(assignment, localRank));
    } catch (error) {
      // The system refuses the command itself (an environment too large, for example): no rank may run without the others.
      spawnError = error;
      this.kill("not all ranks could be started");
    }
    await Promise.all(ranks.map((rank) => this.#finish(rank)));
    clearTimeout(this.#deadline);
    this.#deadline = undefined;
    await this.#killOrphans();
    if (isTooManyOpenFiles(spawnError))
      throw new UsageError(`--nproc-per-node ${this.#plan.nproc}: ${TOO_MANY_FILES_HINT}`);
    if (spawnError !== undefined) throw spawnError;
    return ranks.map((rank) => rank.record());
  }

  /** The number of the attempt that runs, or was the last. */
  get attempt(): number {
    return this.#attempt;
  }

  /** Passes a signal on to every rank, and changes nothing else. */
  forward(signal: NodeJS.Signals): void {
    this.#deliver(this.#ranks, signal);
  }

  /**
   * Signals every rank to end, and kills what is left after `graceMs`. A second call changes nothing. `isForwardedSignal`: because the
   * launcher was signalled to end.
   */
  stop(reason: string, signal: NodeJS.Signals, graceMs: number, isForwardedSignal = false): void {
    const runningRanks = this.#ranks.filter((rank) => rank.isRunning);
    if (this.#deadline !== undefined || runningRanks.length === 0) return;
    this.#deadline = setTimeout(() => this.kill(`still running after ${graceMs / 1000} s`), graceMs);
    for (const rank of runningRanks) rank.markStopped();
    if (isForwardedSignal) this.#deliver(runningRanks, signal);
    else for (const rank of runningRanks) rank.signal(signal);
    const ranks = runningRanks.map(({ rank }) => rank);
    this.#emit({ type: "stop", attempt: this.#attempt, reason, signal, ranks, graceMs });
  }

  /** Ends every rank and its children now. */
  kill(reason: string): void {
    const ranks = this.#ranks.filter((rank) => rank.isRunning).map(({ rank }) => rank);
    for (const rank of this.#runningRanks) rank.kill();
    if (ranks.length > 0) this.#emit({ type: "kill", attempt: this.#attempt, reason, ranks });
  }

  /** Not to ranks that the scheduler has signalled itself. */
  #deliver(ranks: readonly Rank[], signal: NodeJS.Signals): void {
    const sendToRanks = (): void => ranks.forEach((rank) => rank.signal(signal));
    if (this.#signalProbe === undefined) sendToRanks();
    else
      void this.#signalProbe
        .isSentToStep(signal)
        .then((areRanksSignalled) => (areRanksSignalled ? undefined : sendToRanks()));
  }

  #spawn(assignment: Assignment, localRank: number): Rank {
    const plan = this.#plan;
    const rank = assignment.firstRank + localRank;
    const { attempt } = assignment;
    const log = openLog(plan, join(this.#logDir, `attempt_${attempt}`, String(rank)));
    const env = createRankEnvironment(plan, rankVariables(plan, assignment, localRank, log.errorFile));
    const command = this.#wrapCommand(plan.command);
    const onExit = (exitedRank: Rank): void => {
      if (exitedRank.hasSucceeded) this.#onSucceeded(exitedRank.rank);
      if (!exitedRank.hasFailed) return;
      this.#onFailing(exitedRank.rank);
      this.stop(`rank ${exitedRank.rank} failed`, "SIGTERM", plan.failureGraceMs);
    };
    const startedRank = new Rank({
      ...{ rank, local: localRank, attempt, command, env, log, onExit },
      ...{ runId: assignment.runId, cwd: plan.cwd, emit: this.#emit },
    });
    this.#runningRanks.add(startedRank);
    if (startedRank.pid > 0) this.#orphanGuard.addGroup(startedRank.pid);
    this.#emit({ type: "spawn", rank, pid: startedRank.pid, attempt });
    return startedRank;
  }

  async #finish(rank: Rank): Promise<void> {
    await rank.completed;
    this.#runningRanks.delete(rank);
    this.#orphanGuard.removeGroup(rank.pid);
  }

  /** Ends what left its rank's group but still carries the run id: daemons, children in sessions of their own. */
  async #killOrphans(): Promise<void> {
    const reportedPids = new Set<number>();
    for (const startTime = Date.now(); Date.now() - startTime < ORPHAN_TIMEOUT_MS; await delay(5)) {
      const pids = listJobPids(this.#plan.runId);
      for (const pid of pids) sendSignal(pid, "SIGKILL");
      const newPids = pids.filter((pid) => !reportedPids.has(pid));
      for (const pid of newPids) reportedPids.add(pid);
      if (newPids.length > 0) this.#emit({ type: "orphans", attempt: this.#attempt, pids: newPids });
      if (pids.length === 0) return;
    }
  }
}

/** A directory for logs that is full, or was taken away while the job ran, is the user's to mend, and no bug. */
function openLog(plan: LaunchPlan, dir: string): RankLog {
  try {
    return new RankLog(dir);
  } catch (error) {
    if (isTooManyOpenFiles(error)) throw error;
    throw createLogDirError(plan, `${dir} cannot be written`, error);
  }
}

function isTooManyOpenFiles(error: unknown): boolean {
  return ["EMFILE", "ENFILE"].includes((error as NodeJS.ErrnoException | undefined)?.code ?? "");
}

/**
 * Wraps a command so that the kernel kills it when the launcher dies, where util-linux's setpriv can do that.
 *
 * The signal comes at the death of the thread that spawned, so only the main thread may arm it. A launcher that dies
 * before the child is armed is seen by the parent pipe and the guard.
 */
export async function createDeathSignalWrapper(): Promise<(command: Command) => Command> {
  const setpriv = process.platform === "linux" && isMainThread ? findProgram("setpriv") : undefined;
  const setprivArgs = ["--pdeathsig", "KILL", "--"];
  if (setpriv === undefined || !(await exitsWithZero(setpriv, [...setprivArgs, "true"]))) return (command) => command;
  return ({ program, args }) => ({ program: setpriv, args: [...setprivArgs, program, ...args] });
}

async function exitsWithZero(program: string, args: readonly string[]): Promise<boolean> {
  try {
    const [exitCode] = await once(spawn(program, args, { stdio: "ignore" }), "exit");
    return exitCode === 0;
  } catch {
    return false;
  }
}
