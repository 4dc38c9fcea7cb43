/** What is tracked of a tensor. */
export interface TrackedTensor extends Disposable {
  readonly isDisposed: boolean;
  /** What releases it; null: the caller that received it. */
  owner: TensorTracker | null;
}

/** Tensors created while a body runs, for what releases them: a `scope`, or an operation that fails half way. */
export class TensorTracker {
  /** The first `#count` are tensors: a tracker that is used again and again keeps its array. */
  #tensors: (TrackedTensor | undefined)[] = [];
  #numTensors = 0;
  #compactThreshold = 64;

  add(tensor: TrackedTensor): void {
    tensor.owner = this;
    if (this.#numTensors === this.#compactThreshold) this.#compact();
    this.#tensors[this.#numTensors++] = tensor;
  }

  /** Drops what is no longer this tracker's: a loop in a scope must not grow a list of what it disposed itself. */
  #compact(): void {
    this.#tensors = this.#liveTensors();
    this.#numTensors = this.#tensors.length;
    this.#compactThreshold = Math.max(64, 2 * this.#numTensors);
  }

  #liveTensors(): TrackedTensor[] {
    return this.#tensors.filter((tensor) => tensor?.owner === this && !tensor.isDisposed) as TrackedTensor[];
  }

  /** Disposes every tensor that is still this tracker's, the last first, as `using` would. */
  release(): void {
    for (let i = this.#numTensors - 1; i >= 0; i--) {
      const tensor = this.#tensors[i]!;
      if (tensor.owner !== this || tensor.isDisposed) continue;
      tensor[Symbol.dispose]();
      tensor.owner = releasedTensorOwner;
    }
    this.untrackAll();
  }

  /** Gives every tensor that is still this tracker's to the one around it. */
  transferToParent(): void {
    for (const tensor of this.#liveTensors()) transferToActive(tensor);
    this.untrackAll();
  }

  /** Leaves every tensor to its holder. */
  untrackAll(): void {
    for (let i = 0; i < this.#numTensors; i++) this.#tensors[i] = undefined;
    this.#numTensors = 0;
  }
}

/** The owner of what a tracker has released, so that a later use of it is reported as such. */
export const releasedTensorOwner: TensorTracker = new TensorTracker();

let activeTracker: TensorTracker | undefined;

/** Runs `body` (synchronous) while `tracker` tracks what it creates; if it throws, disposes that. */
export function track<T>(tracker: TensorTracker, body: () => T): T {
  const outerTracker = activeTracker;
  activeTracker = tracker;
  try {
    return body();
  } catch (error) {
    tracker.release();
    throw error;
  } finally {
    activeTracker = outerTracker;
  }
}

/** Makes `tracker` the innermost one; returns the one that it takes the place of, for `leaveTracker`. */
export function enterTracker(tracker: TensorTracker | undefined): TensorTracker | undefined {
  const outerTracker = activeTracker;
  activeTracker = tracker;
  return outerTracker;
}

export function leaveTracker(outerTracker: TensorTracker | undefined): void {
  activeTracker = outerTracker;
}

/** Tracks a new tensor. */
export function trackTensor(tensor: TrackedTensor): void {
  activeTracker?.add(tensor);
}

/** Makes the innermost tracker the owner of a tensor; without one, the caller owns it. */
export function transferToActive(tensor: TrackedTensor): void {
  if (activeTracker) activeTracker.add(tensor);
  else tensor.owner = null;
}

/**
 * Runs `body` (synchronous); if it throws, disposes every tensor that it created, so that an allocation that failed half way
 * leaves as much memory as there was, to try again with less.
 */
export function releaseOnError<T>(body: () => T): T {
  const tracker = new TensorTracker();
  const result = track(tracker, body);
  tracker.transferToParent();
  return result;
}

/** Runs `body` (synchronous), whose tensors outlive whatever surrounds it: leaves keep their gradients. */
export function runUntracked<T>(body: () => T): T {
  const outerTracker = activeTracker;
  activeTracker = undefined;
  try {
    return body();
  } finally {
    activeTracker = outerTracker;
  }
}
