import type { Fence, Stream } from "../../src/device.ts";

/** Runs, and returns true; or returns false if it must wait for something. */
export type Work = () => boolean;

/** Runs its streams, each in order, as far as they get: nothing runs before a wait. */
export class Scheduler {
  readonly #streams: ReferenceStream[] = [];

  add(stream: ReferenceStream): void {
    this.#streams.push(stream);
  }

  run(): void {
    for (let moved = true; moved; ) {
      moved = false;
      for (const stream of this.#streams) moved = stream.advance() || moved;
    }
  }
}

export class ReferenceStream implements Stream {
  readonly handle = 0n;
  readonly scheduler: Scheduler;
  #queue: Work[] = [];
  #failure: unknown;
  #marks = 0;
  #done = 0;

  constructor(scheduler: Scheduler) {
    this.scheduler = scheduler;
    scheduler.add(this);
  }

  submit(work: Work): void {
    this.#queue.push(work);
  }

  /** Runs what can run; true if anything did. */
  advance(): boolean {
    let done = 0;
    while (done < this.#queue.length && this.#attempt(this.#queue[done]!)) done++;
    this.#queue = this.#queue.slice(done);
    return done > 0;
  }

  #attempt(work: Work): boolean {
    try {
      return work();
    } catch (error) {
      this.#failure ??= error;
      return true;
    }
  }

  record(): Fence {
    const mark = ++this.#marks;
    this.submit(() => {
      this.#done = mark;
      return true;
    });
    return { stream: this, reached: () => this.#done >= mark } as Fence;
  }

  wait(fence: Fence): void {
    const { reached } = fence as Fence & { reached(): boolean };
    this.submit(reached);
  }

  synchronize(): Promise<void> {
    return this.after(() => undefined);
  }

  /** Resolves to what `body` gives once all work so far is done. */
  after<T>(body: () => T): Promise<T> {
    return new Promise((resolve, reject) => {
      this.submit(() => {
        if (this.#failure === undefined) resolve(body());
        else reject(this.#failure);
        return true;
      });
      setImmediate(() => this.scheduler.run());
    });
  }
}
