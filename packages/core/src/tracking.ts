/** What is tracked of a tensor. */
export interface Tracked extends Disposable {
  readonly isDisposed: boolean;
  /** Who releases it; null: whoever received it does. */
  owner: Tracker | null;
}

/** Tensors created while a body runs, for whoever releases them: a `scope`, or an operation that fails half way. */
export class Tracker {
  #tensors: Tracked[] = [];
  #limit = 64;

  add(tensor: Tracked): void {
    tensor.owner = this;
    if (this.#tensors.length === this.#limit) this.#compact();
    this.#tensors.push(tensor);
  }

  /** Drops what is no longer this tracker's: a loop in a scope must not grow a list of what it disposed itself. */
  #compact(): void {
    this.#tensors = this.#live();
    this.#limit = Math.max(64, 2 * this.#tensors.length);
  }

  #live(): Tracked[] {
    return this.#tensors.filter((tensor) => tensor.owner === this && !tensor.isDisposed);
  }

  /** Disposes every tensor that is still this tracker's, the last first, as `using` would. */
  release(): void {
    for (const tensor of this.#tensors.reverse()) {
      if (tensor.owner !== this || tensor.isDisposed) continue;
      tensor[Symbol.dispose]();
      tensor.owner = ended;
    }
    this.#tensors = [];
  }

  /** Gives every tensor that is still this tracker's to the one around it. */
  handOver(): void {
    for (const tensor of this.#live()) adopt(tensor);
    this.#tensors = [];
  }

  /** Leaves every tensor to whoever holds it. */
  forget(): void {
    this.#tensors = [];
  }
}

/** The owner of what a tracker has released, so that a later use of it is reported as such. */
export const ended: Tracker = new Tracker();

let current: Tracker | undefined;

/** Runs `body` (synchronous) while `tracker` tracks what it creates; if it throws, disposes that. */
export function track<T>(tracker: Tracker, body: () => T): T {
  const outer = current;
  current = tracker;
  try {
    return body();
  } catch (error) {
    tracker.release();
    throw error;
  } finally {
    current = outer;
  }
}

/** Tracks a new tensor. */
export function trackTensor(tensor: Tracked): void {
  current?.add(tensor);
}

/** Makes the innermost tracker the owner of a tensor; without one, whoever received it. */
export function adopt(tensor: Tracked): void {
  if (current) current.add(tensor);
  else tensor.owner = null;
}

/**
 * Runs `body` (synchronous); if it throws, disposes every tensor that it created, so that an allocation that failed half way
 * leaves as much memory as there was, to try again with less.
 */
export function releaseOnError<T>(body: () => T): T {
  const tracker = new Tracker();
  const result = track(tracker, body);
  tracker.handOver();
  return result;
}

/** Runs `body` (synchronous), whose tensors outlive whatever surrounds it: leaves keep their gradients. */
export function untracked<T>(body: () => T): T {
  const outer = current;
  current = undefined;
  try {
    return body();
  } finally {
    current = outer;
  }
}
