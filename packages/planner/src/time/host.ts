import type { RecordedRank } from "../record.ts";
import type { TapeOp } from "../symbolic/tape.ts";
import type { MachineSimulator, Activity } from "./machine.ts";

/** How long a rank's host takes: for what precedes the first operation of a step, and for each operation. */
export interface HostCosts {
  readonly stepOverhead?: number | undefined;
  readonly enqueue: number;
}

/**
 * A rank's host: it enqueues one operation after the other, without waiting for any, and nothing begins before it is enqueued.
 * Where ranks share cores it needs one.
 */
export class HostThread {
  readonly #machine: MachineSimulator;
  readonly #rank: number;
  readonly #secondsPerOperation: number;
  readonly #numOperations: number;
  #activity: Activity | undefined;
  /** Seconds of work that follow the stretch under way. */
  #remainingSeconds = 0;

  // oxlint-disable-next-line max-params -- where, whose, and how much of what
  constructor(
    machine: MachineSimulator,
    rank: number,
    numOperations: number,
    { stepOverhead = 0, enqueue }: HostCosts,
  ) {
    this.#machine = machine;
    this.#rank = rank;
    this.#numOperations = numOperations;
    this.#secondsPerOperation = enqueue;
    const seconds = stepOverhead + numOperations * enqueue;
    if (seconds > 0) this.#activity = machine.startHostWork(rank, seconds, this);
  }

  /** Whether an operation, counted from 1, is enqueued; if not, the stretch under way ends when it is. */
  hasEnqueued(operation: number): boolean {
    if (!this.#activity) return true;
    const laterSeconds = (this.#numOperations - operation) * this.#secondsPerOperation;
    if (this.#machine.remainingSeconds(this.#activity) + this.#remainingSeconds <= laterSeconds) return true;
    this.#machine.truncate(this.#activity, laterSeconds - this.#remainingSeconds);
    this.#remainingSeconds = laterSeconds;
    return false;
  }

  /** A stretch is over. */
  onActivityDone(): void {
    this.#activity =
      this.#remainingSeconds > 0 ? this.#machine.startHostWork(this.#rank, this.#remainingSeconds, this) : undefined;
    this.#remainingSeconds = 0;
  }
}

/** Whether an event is something that the host enqueues: memory is had and given back without the device's knowing. */
export function isEnqueuedOp(op: TapeOp): boolean {
  return op !== "empty" && op !== "free" && op !== "mark";
}

/** What a rank's host enqueues until the end. */
export function countOperations({ tape }: RecordedRank): number {
  let numOperations = 0;
  const event = tape.read();
  while (event.next()) if (isEnqueuedOp(event.op)) numOperations++;
  return numOperations;
}
