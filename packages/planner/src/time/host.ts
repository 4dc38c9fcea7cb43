import type { RecordedRank } from "../record.ts";
import type { TapeOp } from "../symbolic/tape.ts";
import type { MachineSimulator, Activity } from "./machine.ts";

/** Seconds of a rank's host: before the first operation of a step, and for each operation. */
export interface HostCosts {
  readonly stepOverhead?: number | undefined;
  readonly enqueue: number;
}

/**
 * The host of a rank. It enqueues one operation after the other without waiting for any, and no operation begins before
 * it is enqueued. Where ranks share cores, it needs one.
 */
export class HostThread {
  readonly #machine: MachineSimulator;
  readonly #rank: number;
  readonly #secondsPerOperation: number;
  readonly #numOperations: number;
  #activity: Activity | undefined;
  /** Seconds of work after the current activity. */
  #remainingSeconds = 0;

  // oxlint-disable-next-line max-params -- machine, rank, and the number and cost of its operations
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

  /** Whether an operation, counted from 1, is enqueued. If not, the current activity is shortened to end when it is. */
  hasEnqueued(operation: number): boolean {
    if (!this.#activity) return true;
    const laterSeconds = (this.#numOperations - operation) * this.#secondsPerOperation;
    if (this.#machine.remainingSeconds(this.#activity) + this.#remainingSeconds <= laterSeconds) return true;
    this.#machine.truncate(this.#activity, laterSeconds - this.#remainingSeconds);
    this.#remainingSeconds = laterSeconds;
    return false;
  }

  /** Called when the current activity ends. */
  onActivityDone(): void {
    this.#activity =
      this.#remainingSeconds > 0 ? this.#machine.startHostWork(this.#rank, this.#remainingSeconds, this) : undefined;
    this.#remainingSeconds = 0;
  }
}

/** Whether an event is an operation that the host enqueues. Memory is allocated and freed without the device. */
export function isEnqueuedOp(op: TapeOp): boolean {
  return op !== "empty" && op !== "free" && op !== "mark";
}

/** Returns the number of operations that a rank's host enqueues. */
export function countOperations({ tape }: RecordedRank): number {
  let numOperations = 0;
  const event = tape.read();
  while (event.next()) if (isEnqueuedOp(event.op)) numOperations++;
  return numOperations;
}
