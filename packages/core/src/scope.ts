import { checkTensor } from "./arguments.ts";
import { MosaicError, checkFunction } from "./errors.ts";
import { Tensor } from "./tensor.ts";
import { transferToActive, track, TensorTracker } from "./tracking.ts";

/**
 * Runs `body` and then releases every tensor that was created inside, except
 *
 * - what it returns: a tensor, or tensors in arrays, maps, sets and plain objects, at any depth. The scope around it adopts
 *   them; without one they are the caller's, to dispose or to bind with `using`;
 * - what a backward needs: saved tensors have handles of their own, so that `backward` runs after the scope has ended;
 * - gradients, parameters and buffers of modules, and what `keep` names.
 *
 * Tensors created outside are never touched, and `using` inside releases early, for a lower peak. If `body` throws, everything
 * is released. The `forward` of every `Module` runs in a scope. TensorFlow.js calls this `tidy`.
 *
 * Scopes are synchronous: operations enqueue and return at once, so `body` need not wait. A promise returned from a scope is
 * an error, as what an async function creates after its first `await` belongs to no scope. Await outside, or run scopes between
 * the awaits of an async function, and bind with `using` what has to live across one.
 *
 * @example
 * ```ts
 * import { fromArray, scope } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, 2, 3, 4], [2, 2]);
 * using y = scope(() => x.matmul(x.transpose(0, 1)).add(x).relu());
 * Array.from(await y.read()); // => [6, 13, 14, 29]
 * ```
 * @throws MosaicError if `body` returns a promise, alone or in a container; everything has been released.
 */
export function scope<T>(body: () => T): T {
  checkFunction("scope", body);
  const tracker = idleTrackers.pop() ?? new TensorTracker();
  const result = track(tracker, body);
  if (result instanceof Tensor) return endScope(tracker, result, [result]);
  const { tensors, promises } = collectValues(result);
  if (promises.length > 0) throw promiseError(tracker, promises);
  return endScope(tracker, result, tensors);
}

/** Trackers of scopes that have ended: a forward opens a dozen for each layer. */
const idleTrackers: TensorTracker[] = [];

/** Releases what is not returned; what is belongs to the scope around it, unless it was created outside of this one. */
function endScope<T>(tracker: TensorTracker, result: T, returnedTensors: readonly Tensor[]): T {
  for (const tensor of returnedTensors) if (tensor.owner === tracker) transferToActive(tensor);
  tracker.release();
  // What it has owned is released, or another's.
  idleTrackers.push(tracker);
  return result;
}

function promiseError(tracker: TensorTracker, promises: readonly PromiseLike<unknown>[]): MosaicError {
  tracker.release();
  // A promise that rejects later, on a tensor released here, is not a second error.
  for (const promise of promises) promise.then(undefined, () => {});
  return new MosaicError({
    where: "scope",
    expected: "a synchronous function",
    received: "a promise",
    remedy:
      "return tensors and await outside the scope; in async code, run scopes between the awaits or bind tensors with `using`",
  });
}

/**
 * Lets a tensor outlive the scopes that it was created in; the caller then disposes it. Returns it.
 *
 * @example
 * ```ts
 * import { fromArray, keep, scope, type Tensor } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * const cache: Tensor[] = [];
 * scope(() => {
 *   cache.push(keep(fromArray(device, [1, 2], [2])));
 * });
 * cache[0]!.isDisposed; // => false
 * cache[0]!.dispose();
 * ```
 */
export function keep<T extends Tensor>(x: T): T {
  checkTensor("keep", x);
  x.owner = null;
  return x;
}

/**
 * A scope for a function that may be asynchronous: if it returns a promise, nothing is released, because what is under way uses
 * it. Its tensors are then owned as outside of this scope.
 */
export function scopeUnlessAsync<T>(body: () => T): T {
  const tracker = idleTrackers.pop() ?? new TensorTracker();
  const result = track(tracker, body);
  if (result instanceof Tensor) return endScope(tracker, result, [result]);
  if (!isPromise(result)) return endScope(tracker, result, collectValues(result).tensors);
  tracker.transferToParent();
  return result;
}

interface CollectedValues {
  readonly tensors: readonly Tensor[];
  readonly promises: readonly PromiseLike<unknown>[];
}

/** The tensors and promises that a value is, or holds in arrays, maps, sets and plain objects. */
function collectValues(value: unknown): CollectedValues {
  if (value instanceof Tensor) return { tensors: [value], promises: [] };
  const [tensors, promises]: [Tensor[], PromiseLike<unknown>[]] = [[], []];
  const pendingValues = [value];
  const seenObjects = new Set<unknown>();
  while (pendingValues.length > 0) {
    const pendingValue = pendingValues.pop();
    if (typeof pendingValue !== "object" || pendingValue === null || seenObjects.has(pendingValue)) continue;
    seenObjects.add(pendingValue);
    if (pendingValue instanceof Tensor) tensors.push(pendingValue);
    else if (isPromise(pendingValue)) promises.push(pendingValue);
    else for (const containedValue of containerValues(pendingValue)) pendingValues.push(containedValue);
  }
  return { tensors, promises };
}

function containerValues(container: object): Iterable<unknown> {
  if (Array.isArray(container) || container instanceof Set) return container;
  if (container instanceof Map) return [...container].flat();
  const prototype: unknown = Object.getPrototypeOf(container);
  return prototype === Object.prototype || prototype === null ? Object.values(container) : [];
}

function isPromise(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as PromiseLike<unknown> | null | undefined)?.then === "function";
}
