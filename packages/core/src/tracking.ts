/** The part of a tensor that trackers use. */
export interface TrackedTensor extends Disposable {
  readonly isDisposed: boolean;
  /** The tracker that releases the tensor; null if the caller must dispose it. */
  owner: TensorTracker | null;
}

/**
 * Tracks tensors that are created while a body runs, for a `scope` that releases them, or for an operation that fails.
 */
export class TensorTracker {
  /** The first `#numTensors` entries are tensors. The array is kept when a tracker is reused. */
  #tensors: (TrackedTensor | undefined)[] = [];
  #numTensors = 0;
  #compactThreshold = 64;

  add(tensor: TrackedTensor): void {
    tensor.owner = this;
    if (this.#numTensors === this.#compactThreshold) this.#compact();
    this.#tensors[this.#numTensors++] = tensor;
  }

  /**
   * Removes tensors that this tracker no longer owns, so that a loop in a scope does not grow a list of disposed
   * tensors.
   */
  #compact(): void {
    this.#tensors = this.#liveTensors();
    this.#numTensors = this.#tensors.length;
    this.#compactThreshold = Math.max(64, 2 * this.#numTensors);
  }

  #liveTensors(): TrackedTensor[] {
    return this.#tensors.filter((tensor) => tensor?.owner === this && !tensor.isDisposed) as TrackedTensor[];
  }

  /** Disposes every tensor that this tracker still owns, in reverse order of creation, as `using` would. */
  release(): void {
    for (let i = this.#numTensors - 1; i >= 0; i--) {
      const tensor = this.#tensors[i]!;
      if (tensor.owner !== this || tensor.isDisposed) continue;
      tensor[Symbol.dispose]();
      tensor.owner = releasedTensorOwner;
    }
    this.untrackAll();
  }

  /** Transfers every tensor that this tracker still owns to the enclosing tracker. */
  transferToParent(): void {
    for (const tensor of this.#liveTensors()) transferToActiveTracker(tensor);
    this.untrackAll();
  }

  /** Stops tracking all tensors without disposing them. */
  untrackAll(): void {
    for (let i = 0; i < this.#numTensors; i++) this.#tensors[i] = undefined;
    this.#numTensors = 0;
  }
}

/** The owner of tensors that a tracker has released, so that errors about a later use can report it. */
export const releasedTensorOwner: TensorTracker = new TensorTracker();

let activeTracker: TensorTracker | undefined;

/** Runs `body` (synchronous) while `tracker` tracks the tensors that it creates. If it throws, disposes them. */
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

/** Makes `tracker` the active tracker. Returns the previous one, for `leaveTracker`. */
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

/** Makes the active tracker the owner of a tensor; without one, the caller owns it. */
export function transferToActiveTracker(tensor: TrackedTensor): void {
  if (activeTracker) activeTracker.add(tensor);
  else tensor.owner = null;
}

/**
 * Runs `body` (synchronous). If it throws, disposes every tensor that it created, so that after a failed allocation as
 * much memory is available as before, and the caller can retry with less.
 */
export function releaseOnError<T>(body: () => T): T {
  const tracker = new TensorTracker();
  const result = track(tracker, body);
  tracker.transferToParent();
  return result;
}

/**
 * Runs `body` (synchronous) without tracking, so that its tensors outlive all enclosing scopes, for example gradients
 * of leaves.
 */
export function runUntracked<T>(body: () => T): T {
  const outerTracker = activeTracker;
  activeTracker = undefined;
  try {
    return body();
  } finally {
    activeTracker = outerTracker;
  }
}
