import type { Failure, LostNode } from "./job.ts";
import type { LaunchPlan } from "./launch-plan.ts";

/** EX_CONFIG: a rank exits with this code to report that a restart cannot succeed. */
const EX_CONFIG = 78;
const MAX_BACKOFF_MS = 30_000;
/** Keeps the factor finite, because a delay of 0 times infinity is not a number. */
const MAX_DOUBLINGS = 64;

/** A request to end a job before its ranks exit by themselves. */
export interface StopRequest {
  readonly reason: string;
  readonly signal: NodeJS.Signals;
  readonly outcome: "cancelled" | "timed-out";
}

/** Result of an attempt, and whether the job is restarted. At most one of `failure`, `lost` and `stop` is set. */
export interface AttemptDecision {
  readonly failure?: Failure;
  readonly lost?: LostNode;
  readonly stop?: StopRequest;
  /** Delay before the next attempt; absent after the last one. */
  readonly restartInMs?: number;
}

/** Summary of an attempt whose ranks have all exited. */
export interface AttemptSummary {
  readonly attempt: number;
  readonly uptimeMs: number;
  readonly failure: Failure | undefined;
  readonly lost?: LostNode | undefined;
  readonly stop: StopRequest | undefined;
}

/** Decides whether a job is restarted: `--max-restarts`, `--restart-backoff`, `--restart-reset`, `--min-uptime`. */
export class RestartPolicy {
  readonly #plan: LaunchPlan;
  /** Number of failures before `--min-uptime` had passed, since the last attempt that ran at least that long. */
  #earlyFailures = 0;
  /** The last attempt that ran for at least `--restart-reset`, after which the delay is that before a first restart. */
  #lastLongAttempt = 0;

  constructor(plan: LaunchPlan) {
    this.#plan = plan;
  }

  decide({ attempt, uptimeMs, failure, lost, stop }: AttemptSummary): AttemptDecision {
    if (uptimeMs >= this.#plan.restartResetMs) this.#lastLongAttempt = attempt;
    const doublings = Math.min(attempt - this.#lastLongAttempt, MAX_DOUBLINGS);
    const restartInMs = Math.min(this.#plan.restartBackoffMs * 2 ** doublings, MAX_BACKOFF_MS);
    const canRestart = attempt < this.#plan.maxRestarts && stop === undefined;
    const isEarly = uptimeMs < this.#plan.minUptimeMs;
    if (lost !== undefined) {
      if (!isEarly) this.#earlyFailures = 0;
      return { lost, ...(canRestart ? { restartInMs } : {}) };
    }
    // Another process may send the signal that ends the job to the ranks, too. A rank that it terminates has not
    // failed.
    const isCancelled = failure !== undefined && failure.signal !== null && failure.signal === stop?.signal;
    if (failure === undefined || isCancelled) return stop === undefined ? {} : { stop };
    this.#earlyFailures = isEarly ? this.#earlyFailures + 1 : 0;
    if (!canRestart) return { failure };
    const noRestartReason = this.#findNoRestartReason(failure);
    return noRestartReason === undefined ? { failure, restartInMs } : { failure: { ...failure, noRestartReason } };
  }

  #findNoRestartReason({ exitCode }: Failure): string | undefined {
    if (exitCode === EX_CONFIG) return `exit code ${EX_CONFIG} (EX_CONFIG) is not retried`;
    const { minUptimeMs } = this.#plan;
    if (this.#earlyFailures < 2) return undefined;
    return `two consecutive failures, each within ${minUptimeMs / 1000} s of the start (--min-uptime)`;
  }
}
