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
  readonly #operations: number;
  #work: Activity | undefined;
  /** Seconds of work that follow the stretch under way. */
  #remaining = 0;

  // oxlint-disable-next-line max-params -- where, whose, and how much of what
  constructor(machine: MachineSimulator, rank: number, operations: number, { stepOverhead = 0, enqueue }: HostCosts) {
    this.#machine = machine;
    this.#rank = rank;
    this.#operations = operations;
    this.#secondsPerOperation = enqueue;
    const seconds = stepOverhead + operations * enqueue;
    if (seconds > 0) this.#work = machine.host(rank, seconds, this);
  }

  /** Whether an operation, counted from 1, is enqueued; if not, the stretch under way ends when it is. */
  hasEnqueued(operation: number): boolean {
    if (!this.#work) return true;
    const after = (this.#operations - operation) * this.#secondsPerOperation;
    if (this.#machine.remainingSeconds(this.#work) + this.#remaining <= after) return true;
    this.#machine.truncate(this.#work, after - this.#remaining);
    this.#remaining = after;
    return false;
  }

  /** A stretch is over. */
  onActivityDone(): void {
    this.#work = this.#remaining > 0 ? this.#machine.host(this.#rank, this.#remaining, this) : undefined;
    this.#remaining = 0;
  }
}

/** Whether an event is something that the host enqueues: memory is had and given back without the device's knowing. */
export function isEnqueuedOp(op: TapeOp): boolean {
  return op !== "empty" && op !== "free" && op !== "mark";
}

/** What a rank's host enqueues until the end. */
export function countOperations({ tape }: RecordedRank): number {
  let operations = 0;
  const event = tape.read();
  while (event.next()) if (isEnqueuedOp(event.op)) operations++;
  return operations;
}
