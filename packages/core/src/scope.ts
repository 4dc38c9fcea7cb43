import { checkTensor } from "./arguments.ts";
import { MosaicError, checkFunction } from "./errors.ts";
import { Tensor } from "./tensor.ts";
import { transferToActiveTracker, track, TensorTracker } from "./tracking.ts";

/**
 * Runs `body`, then releases every tensor that was created in it, except
 *
 * - returned tensors: a tensor, or tensors in arrays, maps, sets and plain objects, at any depth. The enclosing scope
 *   takes ownership; without one, the caller must dispose them or bind them with `using`;
 * - tensors that a backward needs: saved tensors have separate handles, so that `backward` can run after the scope has
 *   ended;
 * - gradients, parameters and buffers of modules, and tensors passed to `keep`.
 *
 * Tensors created outside are not affected. `using` inside of a scope releases a tensor earlier, which lowers peak
 * memory. If `body` throws, everything is released. The `forward` of every `Module` runs in a scope. TensorFlow.js
 * calls this `tidy`.
 *
 * Scopes are synchronous: operations are enqueued and return immediately, so `body` does not need to wait. Returning a
 * promise from a scope is an error, because tensors that an async function creates after its first `await` belong to no
 * scope. Await outside, or run scopes between the awaits of an async function, and bind tensors that must outlive an
 * await with `using`.
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

/** Trackers of ended scopes, which are reused because a forward opens about a dozen scopes per layer. */
const idleTrackers: TensorTracker[] = [];

/**
 * Releases tensors that are not returned. Returned tensors are transferred to the enclosing scope, unless they were
 * created outside of this one.
 */
function endScope<T>(tracker: TensorTracker, result: T, returnedTensors: readonly Tensor[]): T {
  for (const tensor of returnedTensors) if (tensor.owner === tracker) transferToActiveTracker(tensor);
  tracker.release();
  // All tensors of the tracker are released or have another owner.
  idleTrackers.push(tracker);
  return result;
}

function promiseError(tracker: TensorTracker, promises: readonly PromiseLike<unknown>[]): MosaicError {
  tracker.release();
  // Suppresses later rejections of the promises, which may fail because their tensors are released here.
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
 * Removes a tensor from the scope that owns it, so that it is not released. The caller must then dispose it. Returns
 * the tensor.
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
 * As `scope`, for a function that may be asynchronous. If it returns a promise, nothing is released, because pending
 * code may use the tensors. They are then owned as if there were no such scope.
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

/** Collects the tensors and promises in a value, including those in arrays, maps, sets and plain objects. */
function collectValues(value: unknown): CollectedValues {
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

/** Returns whether a value is a promise, or another object with a method `then`. */
export function isPromise(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as PromiseLike<unknown> | null | undefined)?.then === "function";
}
