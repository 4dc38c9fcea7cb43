import { type ChildProcess, spawn } from "node:child_process";
import { isSlurmStep } from "../options/sources.ts";

/** Time within which a scheduler signals all processes of a step. */
const SIGNAL_WAIT_MS = 100;
/** A signal that was received longer ago than this is a different one. */
const MAX_SIGNAL_AGE_MS = 1000;

/**
 * Detects whether SLURM's `scancel` has signalled the ranks itself. If SLURM tracks processes by cgroups or by their
 * parents, it signals the launcher and all its descendants, in any order, including those in other sessions. If it
 * tracks process groups, it signals only the launcher. A rank that is signalled twice would write two checkpoints, or
 * be killed although it expects one SIGTERM. The probe is a child process that the launcher never signals: if it dies
 * of a signal, the ranks have received it, too.
 */
export class SignalProbe implements Disposable {
  readonly #receivedAt = new Map<NodeJS.Signals, number>();
  #process: ChildProcess | undefined;
  #waiters: (() => void)[] = [];
  #isClosed = false;

  private constructor() {
    this.#spawnProbe();
  }

  /** Starts a probe. Returns undefined outside a SLURM step. */
  static start(env: NodeJS.ProcessEnv = process.env): SignalProbe | undefined {
    return isSlurmStep(env) ? new SignalProbe() : undefined;
  }

  /**
   * Returns whether a signal that this process has just received was sent to all processes of the step, not only to the
   * launcher.
   */
  async isSentToStep(signal: NodeJS.Signals): Promise<boolean> {
    const isRecentlyReceived = (): boolean =>
      performance.now() - (this.#receivedAt.get(signal) ?? Number.NEGATIVE_INFINITY) < MAX_SIGNAL_AGE_MS;
    const deadline = performance.now() + SIGNAL_WAIT_MS;
    while (!isRecentlyReceived() && performance.now() < deadline)
      await this.#waitForSignal(deadline - performance.now());
    const isStepSignal = isRecentlyReceived();
    // Each record is used once, because the same signal may be sent again.
    this.#receivedAt.delete(signal);
    return isStepSignal;
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    this.#process?.kill("SIGKILL");
  }

  /** Starts a process that reads from a pipe without data, and exits with the launcher. */
  #spawnProbe(): void {
    const env = { PATH: `${process.env.PATH ?? ""}:/usr/bin:/bin` };
    const child = spawn("cat", { detached: true, env, stdio: ["pipe", "ignore", "ignore"] });
    child.unref();
    child.stdin.on("error", () => {});
    // Without the program, all signals are forwarded.
    child.on("error", () => {});
    child.on("exit", (_, signal) => {
      if (this.#isClosed) return;
      if (signal !== null) this.#receivedAt.set(signal, performance.now());
      for (const waiter of this.#waiters.splice(0)) waiter();
      if (signal !== null && signal !== "SIGKILL") this.#spawnProbe();
    });
    this.#process = child;
  }

  #waitForSignal(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#waiters.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }
}
