/** Collects what happens within a window: the first at once, everything after it together. */
export class Batch {
  readonly #windowMs: number;
  readonly #flush: () => void;
  #flushedAt = Number.NEGATIVE_INFINITY;
  #timer: NodeJS.Timeout | NodeJS.Immediate | undefined;
  #disposed = false;

  constructor(windowMs: number, flush: () => void) {
    this.#windowMs = windowMs;
    this.#flush = flush;
  }

  /** There is something to flush. */
  schedule(): void {
    if (this.#timer !== undefined || this.#disposed) return;
    const delay = this.#flushedAt + this.#windowMs - performance.now();
    this.#timer = delay > 0 ? setTimeout(() => this.now(), delay) : setImmediate(() => this.now());
  }

  /** Flushes now what was scheduled. */
  now(): void {
    if (this.#timer === undefined) return;
    this.#clear();
    this.#flushedAt = performance.now();
    this.#flush();
  }

  dispose(): void {
    this.#clear();
    this.#disposed = true;
  }

  #clear(): void {
    clearTimeout(this.#timer as NodeJS.Timeout);
    clearImmediate(this.#timer as NodeJS.Immediate);
    this.#timer = undefined;
  }
}
