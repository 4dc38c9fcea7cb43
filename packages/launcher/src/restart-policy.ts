import type { Failure, LostNode } from "./job.ts";
import type { LaunchPlan } from "./launch-plan.ts";

/** EX_CONFIG: what a rank exits with to report that trying again is of no use. */
const EX_CONFIG = 78;
const MAX_BACKOFF_MS = 30_000;

/** Why a job ends before its ranks do. */
export interface StopRequest {
  readonly reason: string;
  readonly signal: NodeJS.Signals;
  readonly outcome: "cancelled" | "timed-out";
}

/** What came of an attempt, and whether another follows. At most one of `failure`, `lost` and `stop` is there. */
export interface AttemptDecision {
  readonly failure?: Failure;
  readonly lost?: LostNode;
  readonly stop?: StopRequest;
  /** Before the next attempt; absent when this was the last. */
  readonly restartInMs?: number;
}

/** What is known when no rank of an attempt is left. */
export interface AttemptSummary {
  readonly attempt: number;
  readonly uptimeMs: number;
  readonly failure: Failure | undefined;
  readonly lost?: LostNode | undefined;
  readonly stop: StopRequest | undefined;
}

/** Decides whether a job is restarted: `--max-restarts`, `--restart-backoff`, `--min-uptime`. */
export class RestartPolicy {
  readonly #plan: LaunchPlan;
  /** Failures in a row that came too soon. */
  #earlyFailures = 0;

  constructor(plan: LaunchPlan) {
    this.#plan = plan;
  }

  decide({ attempt, uptimeMs, failure, lost, stop }: AttemptSummary): AttemptDecision {
    const restartInMs = Math.min(this.#plan.restartBackoffMs * 2 ** attempt, MAX_BACKOFF_MS);
    const canRestart = attempt < this.#plan.maxRestarts && stop === undefined;
    if (lost !== undefined) return { lost, ...(canRestart ? { restartInMs } : {}) };
    // A rank that died of the very signal that ends the job was signalled by another process first: no failure.
    const isCancelled = failure !== undefined && failure.signal !== null && failure.signal === stop?.signal;
    if (failure === undefined || isCancelled) return stop === undefined ? {} : { stop };
    this.#earlyFailures = uptimeMs < this.#plan.minUptimeMs ? this.#earlyFailures + 1 : 0;
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
