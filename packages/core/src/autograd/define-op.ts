import { checkFunction } from "../errors.ts";
import { checkNullableTensor } from "../arguments.ts";
import { Tensor } from "../tensor.ts";
import { transferToActiveTracker, enterTracker, leaveTracker, releaseOnError, TensorTracker } from "../tracking.ts";
import type { Sharding } from "../placement/placement.ts";
import { isRecorded, setGradMode } from "./node.ts";
import { checkVersions, type SavedValues, recordVersions } from "./saved-tensors.ts";

/**
 * A differentiable operation: forward and backward. Operations inside them are not recorded. If one of them throws, the
 * tensors that it created are disposed.
 */
export interface OpDefinition<Inputs extends readonly (Tensor | null)[], Options, S extends SavedValues> {
  /** Name shown in error messages. */
  readonly name: string;
  /**
   * `output` must be a new tensor. `saved` may contain inputs and the output (they are retained by a separate handle)
   * and tensors created here (the tape takes ownership). All are disposed after the backward, or when the tape is
   * released. The backward throws if one of them was mutated in between. Compute values that only the backward needs
   * only if `isRecorded`.
   */
  forward(inputs: Inputs, options: Options, isRecorded: boolean): { readonly output: Tensor; readonly saved: S };
  /**
   * Returns one gradient per input, of its shape and dtype, or null where `needsInputGrad` is false or the gradient is
   * zero. The caller takes ownership of returned tensors; `dOutput` may be among them.
   */
  backward(saved: S, dOutput: Tensor, needsInputGrad: readonly boolean[]): readonly (Tensor | null)[];
  /**
   * Returns how the output is sharded over ranks. Called before the forward if the sharding of an input is known. Throws
   * if the inputs are sharded incompatibly. Default: unknown.
   */
  sharding?(name: string, inputs: NoInfer<Inputs>, options: NoInfer<Options>): Sharding | null;
}

/**
 * Creates a differentiable operation from a forward and a backward. All operations of this package except views are
 * created by it.
 *
 * @example
 * ```ts
 * import { defineOp, fromArray, type Tensor } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const cube = defineOp({
 *   name: "cube",
 *   forward([x]: [Tensor]) {
 *     const { kernels } = x.device;
 *     const output = x.device.empty(x.shape, x.dtype);
 *     kernels.unary("square", output, x);
 *     kernels.binary("mul", output, output, x);
 *     return { output, saved: { x } };
 *   },
 *   backward({ x }, dOutput) {
 *     const { kernels } = x.device;
 *     const dx = x.device.empty(x.shape, x.dtype);
 *     kernels.unary("square", dx, x);
 *     kernels.scalar("mul", dx, dx, 3);
 *     kernels.binary("mul", dx, dx, dOutput);
 *     return [dx];
 *   },
 * });
 * using device = cpu();
 * const x = fromArray(device, [2], []);
 * x.requiresGrad = true;
 * using y = cube([x], {});
 * y.backward();
 * await y.item(); // => 8
 * await x.grad?.item(); // => 12
 * ```
 */
export function defineOp<Inputs extends readonly (Tensor | null)[], Options, S extends SavedValues>(
  op: OpDefinition<Inputs, Options, S>,
): (inputs: Inputs, options: Options) => Tensor {
  checkFunction("defineOp: forward", op?.forward);
  checkFunction("defineOp: backward", op.backward);
  return (inputs, options) => {
    let isSharded = false;
    for (const input of inputs) {
      checkNullableTensor(op.name, input);
      if (input !== null && input.sharding !== null) isSharded = true;
    }
    const isOpRecorded = inputs.some((input) => input !== null && isRecorded(input));
    const sharding = isSharded && op.sharding ? op.sharding(op.name, inputs, options) : null;
    const { output, saved } = runForward(op, inputs, { options, isRecorded: isOpRecorded });
    if (isOpRecorded) recordOp(op, inputs, { output, saved });
    else disposeIntermediates(saved, inputs, output);
    if (sharding !== null) output.sharding = sharding;
    return output;
  };
}

/** Trackers of forwards, by nesting depth. A call reuses the tracker of an earlier call at the same depth. */
const idleTrackers: TensorTracker[] = [];
let nestingDepth = 0;

/** Runs the forward. An enclosing scope tracks only its output, because the tape owns the saved tensors. */
function runForward<Inputs extends readonly (Tensor | null)[], Options, S extends SavedValues>(
  op: OpDefinition<Inputs, Options, S>,
  inputs: Inputs,
  { options, isRecorded }: { readonly options: Options; readonly isRecorded: boolean },
): { readonly output: Tensor; readonly saved: S } {
  const tracker = (idleTrackers[nestingDepth] ??= new TensorTracker());
  nestingDepth++;
  const outerTracker = enterTracker(tracker);
  const gradMode = setGradMode(false);
  let result: { readonly output: Tensor; readonly saved: S } | undefined;
  try {
    result = op.forward(inputs, options, isRecorded);
  } finally {
    setGradMode(gradMode);
    leaveTracker(outerTracker);
    nestingDepth--;
    // If the forward throws, all its tensors are released.
    if (result === undefined) tracker.release();
    else tracker.untrackAll();
  }
  transferToActiveTracker(result.output);
  return result;
}

/** Disposes the tensors that the forward saved, if the operation is not recorded. */
function disposeIntermediates(saved: SavedValues, inputs: readonly (Tensor | null)[], output: Tensor): void {
  for (const name in saved) {
    const value = saved[name];
    if (value instanceof Tensor && value !== output && !inputs.includes(value)) value.dispose();
  }
}

/** Records the operation. Saved inputs are held by a separate handle, so that the caller may dispose its own handle. */
function recordOp<Inputs extends readonly (Tensor | null)[], Options, S extends SavedValues>(
  op: OpDefinition<Inputs, Options, S>,
  inputs: Inputs,
  { output, saved }: { readonly output: Tensor; readonly saved: S },
): void {
  const savedHandles = detachShared(saved, inputs, output);
  const versions = recordVersions(savedHandles);
  output.record(inputs, {
    name: op.name,
    backward(dOutput, needsInputGrad) {
      checkVersions(op.name, savedHandles, versions);
      return releaseOnError(() => op.backward(savedHandles, dOutput, needsInputGrad));
    },
    free: () => disposeSaved(savedHandles),
  });
}

function detachShared<S extends SavedValues>(saved: S, inputs: readonly (Tensor | null)[], output: Tensor): S {
  const outerTracker = enterTracker(undefined);
  try {
    const savedHandles: Record<string, unknown> = {};
    for (const name in saved) {
      const value: unknown = saved[name];
      const isShared = value instanceof Tensor && (value === output || inputs.includes(value));
      savedHandles[name] = isShared ? value.detach() : value;
    }
    return savedHandles as S;
  } finally {
    leaveTracker(outerTracker);
  }
}

function disposeSaved(saved: SavedValues): void {
  for (const name in saved) {
    const value = saved[name];
    if (value instanceof Tensor) value.dispose();
  }
}
