import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { isMainThread } from "node:worker_threads";
import type { Assignment } from "../coordinator.ts";
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

/** Killed processes that still exist after this time are blocked in the kernel and cannot be ended. */
const ORPHAN_TIMEOUT_MS = 2000;

export interface NodeRanksOptions {
  readonly plan: LaunchPlan;
  readonly logDir: string;
  readonly orphanGuard: OrphanGuard;
  readonly emit: EventListener;
  /** Called when a rank has failed, before the other ranks are signalled to end. */
  readonly onFailing: (rank: number) => void;
  /** Called when a rank has exited with 0. */
  readonly onSucceeded: (rank: number) => void;
  /** Returns the command that is executed for a rank's command; see `createDeathSignalWrapper`. */
  readonly wrapCommand: (command: Command) => Command;
  /** Set under a scheduler that may signal ranks itself. */
  readonly signalProbe: SignalProbe | undefined;
}

/** Runs this node's ranks for one attempt: starts them together, monitors them, and ends them together. */
export class NodeRanks {
  readonly #plan: LaunchPlan;
  readonly #logDir: string;
  readonly #orphanGuard: OrphanGuard;
  readonly #emit: EventListener;
  readonly #onFailing: (rank: number) => void;
  readonly #onSucceeded: (rank: number) => void;
  readonly #wrapCommand: (command: Command) => Command;
  readonly #signalProbe: SignalProbe | undefined;
  #ranks: readonly Rank[] = [];
  /** Ranks whose process or process group may still exist. */
  readonly #runningRanks = new Set<Rank>();
  #attempt = 0;
  #deadline: NodeJS.Timeout | undefined;

  constructor(options: NodeRanksOptions) {
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

  /** Runs an attempt. Resolves when all ranks and the processes that they started have exited. */
  async run(assignment: Assignment): Promise<readonly RankRecord[]> {
    this.#attempt = assignment.attempt;
    const ranks: Rank[] = [];
    this.#ranks = ranks;
    let spawnError: unknown;
    try {
      for (let localRank = 0; localRank < this.#plan.nproc; localRank++) ranks.push(this.#spawn(assignment, localRank));
    } catch (error) {
      // The system cannot start the command, for example because the environment is too large. The started ranks are
      // ended.
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

  /** Number of the running attempt, or of the last one. */
  get attempt(): number {
    return this.#attempt;
  }

  /** Forwards a signal to all ranks, without other effects. */
  forward(signal: NodeJS.Signals): void {
    this.#deliver(this.#ranks, signal);
  }

  /**
   * Signals all ranks to end, and kills the remaining ones after `graceMs`. A second call has no effect.
   * `isForwardedSignal` is true if the launcher was signalled to end.
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

  /** Kills all ranks and their process groups now. */
  kill(reason: string): void {
    const ranks = this.#ranks.filter((rank) => rank.isRunning).map(({ rank }) => rank);
    for (const rank of this.#runningRanks) rank.kill();
    if (ranks.length > 0) this.#emit({ type: "kill", attempt: this.#attempt, reason, ranks });
  }

  /** Sends a signal to ranks, unless the scheduler has signalled them itself. */
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

  /**
   * Kills processes that left their rank's group but have the run id in their environment: daemons, children in other
   * sessions.
   */
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

/**
 * Opens a rank's log. A directory that is full or was removed while the job ran is reported as a UsageError, not as a
 * bug.
 */
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
 * Returns a function that wraps a command so that the kernel kills it when the launcher exits, by util-linux's setpriv
 * if that is available.
 *
 * The kernel sends the signal when the thread that started the process exits, so this works only from the main
 * thread. If the launcher exits before setpriv has run, the parent pipe and the guard end the rank.
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
