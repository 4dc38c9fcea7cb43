import { type ChildProcess, spawn } from "node:child_process";
import { isSlurmStep } from "../options/sources.ts";

/** A scheduler signals all processes of a step within this time. */
const SIGNAL_WAIT_MS = 100;
/** What came so long ago is another signal. */
const MAX_SIGNAL_AGE_MS = 1000;

/**
 * SLURM's `scancel` signals, where it tracks processes by cgroups or by their parents, the launcher and each of its descendants, in any order,
 * those in sessions of their own included; where it tracks process groups, the launcher alone. What launchers pass on would reach ranks
 * twice: two checkpoints, or the death of a rank that expects one SIGTERM. This is a child process that the launcher never signals:
 * where it dies of a signal, so did the ranks receive it.
 */
export class SignalProbe implements Disposable {
  readonly #receivedAt = new Map<NodeJS.Signals, number>();
  #process: ChildProcess | undefined;
  #waiters: (() => void)[] = [];
  #isClosed = false;

  private constructor() {
    this.#spawnProbe();
  }

  /** Undefined where no scheduler signals ranks. */
  static start(env: NodeJS.ProcessEnv = process.env): SignalProbe | undefined {
    return isSlurmStep(env) ? new SignalProbe() : undefined;
  }

  /** Whether all processes of the step, and not the launcher alone, receive a signal that this process has just received. */
  async isSentToStep(signal: NodeJS.Signals): Promise<boolean> {
    const isRecentlyReceived = (): boolean =>
      performance.now() - (this.#receivedAt.get(signal) ?? Number.NEGATIVE_INFINITY) < MAX_SIGNAL_AGE_MS;
    const deadline = performance.now() + SIGNAL_WAIT_MS;
    while (!isRecentlyReceived() && performance.now() < deadline)
      await this.#waitForSignal(deadline - performance.now());
    const isStepSignal = isRecentlyReceived();
    // Once for each signal: the next one may come at once.
    this.#receivedAt.delete(signal);
    return isStepSignal;
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    this.#process?.kill("SIGKILL");
  }

  /** It reads what never comes, and ends with the launcher. */
  #spawnProbe(): void {
    const env = { PATH: `${process.env.PATH ?? ""}:/usr/bin:/bin` };
    const child = spawn("cat", { detached: true, env, stdio: ["pipe", "ignore", "ignore"] });
    child.unref();
    child.stdin.on("error", () => {});
    // Without the program, every signal is passed on.
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
