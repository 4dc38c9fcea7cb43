import type { Fence, Stream } from "../../src/device.ts";

/** Runs and returns true, or returns false if it must wait. */
export type StreamWork = () => boolean;

/** Runs all streams, each in order, until none can make progress. Work does not run when it is submitted. */
export class Scheduler {
  readonly #streams: ReferenceStream[] = [];

  add(stream: ReferenceStream): void {
    this.#streams.push(stream);
  }

  run(): void {
    for (let hasProgress = true; hasProgress; ) {
      hasProgress = false;
      for (const stream of this.#streams) hasProgress = stream.advance() || hasProgress;
    }
  }
}

export class ReferenceStream implements Stream {
  readonly handle = 0n;
  readonly scheduler: Scheduler;
  #queue: StreamWork[] = [];
  #firstError: unknown;
  #numFences = 0;
  #lastReachedFence = 0;

  constructor(scheduler: Scheduler) {
    this.scheduler = scheduler;
    scheduler.add(this);
  }

  submit(work: StreamWork): void {
    this.#queue.push(work);
  }

  /** Runs work until an item must wait. Returns whether any ran. */
  advance(): boolean {
    let numCompleted = 0;
    while (numCompleted < this.#queue.length && this.#attempt(this.#queue[numCompleted]!)) numCompleted++;
    this.#queue = this.#queue.slice(numCompleted);
    return numCompleted > 0;
  }

  #attempt(work: StreamWork): boolean {
    try {
      return work();
    } catch (error) {
      this.#firstError ??= error;
      return true;
    }
  }

  record(): Fence {
    const fenceNumber = ++this.#numFences;
    this.submit(() => {
      this.#lastReachedFence = fenceNumber;
      return true;
    });
    return { stream: this, isReached: () => this.#lastReachedFence >= fenceNumber } as Fence;
  }

  wait(fence: Fence): void {
    const { isReached } = fence as Fence & { isReached(): boolean };
    this.submit(isReached);
  }

  synchronize(): Promise<void> {
    return this.runWhenReached(() => undefined);
  }

  /** Resolves to the result of `body` when all work enqueued so far is done. */
  runWhenReached<T>(body: () => T): Promise<T> {
    return new Promise((resolve, reject) => {
      this.submit(() => {
        if (this.#firstError === undefined) resolve(body());
        else reject(this.#firstError);
        return true;
      });
      setImmediate(() => this.scheduler.run());
    });
  }
}
