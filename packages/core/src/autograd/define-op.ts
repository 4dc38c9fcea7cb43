import { checkFunction } from "../errors.ts";
import { checkNullableTensor } from "../arguments.ts";
import { Tensor } from "../tensor.ts";
import { transferToActive, enterTracker, leaveTracker, releaseOnError, TensorTracker } from "../tracking.ts";
import { isRecorded, setGradMode } from "./node.ts";
import { checkVersions, type SavedValues, recordVersions } from "./saved-tensors.ts";

/**
 * An operation: its forward beside its backward. Neither is itself recorded. If one throws,
 * the tensors that it created are disposed.
 */
export interface OpDefinition<Inputs extends readonly (Tensor | null)[], Options, S extends SavedValues> {
  /** Name shown in error messages. */
  readonly name: string;
  /**
   * `output` must be a new tensor. `saved` may hold inputs and the output (they are retained by a separate handle) and
   * tensors created here (the tape takes ownership): all are disposed after the backward, or when the tape is dropped. The
   * backward is an error if one was mutated meanwhile. Compute what only the backward needs if `isRecorded`.
   */
  forward(inputs: Inputs, options: Options, isRecorded: boolean): { readonly output: Tensor; readonly saved: S };
  /**
   * One gradient per input, of its shape and dtype, or null where `needsInputGrad` is false or the gradient is zero. The caller takes ownership of returned
   * tensors; `dOutput` may be among them.
   */
  backward(saved: S, dOutput: Tensor, needsInputGrad: readonly boolean[]): readonly (Tensor | null)[];
}

/**
 * The one way to add a differentiable operation; every operation here is made by it, views aside.
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
    for (const input of inputs) checkNullableTensor(op.name, input);
    const isOpRecorded = inputs.some((input) => input !== null && isRecorded(input));
    const { output, saved } = runForward(op, inputs, { options, isRecorded: isOpRecorded });
    if (isOpRecorded) recordOp(op, inputs, { output, saved });
    else disposeIntermediates(saved, inputs, output);
    return output;
  };
}

/** Trackers of forwards, by nesting depth: a call reuses the tracker of an earlier one at the same depth. */
const idleTrackers: TensorTracker[] = [];
let nestingDepth = 0;

/** A scope tracks only the output of the forward: the tape owns saved tensors. */
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
    // If it throws, nothing is retained.
    if (result === undefined) tracker.release();
    else tracker.untrackAll();
  }
  transferToActive(result.output);
  return result;
}

/** Nothing is recorded: disposes what the forward saved for a backward. */
function disposeIntermediates(saved: SavedValues, inputs: readonly (Tensor | null)[], output: Tensor): void {
  for (const name in saved) {
    const value = saved[name];
    if (value instanceof Tensor && value !== output && !inputs.includes(value)) value.dispose();
  }
}

/** Records the operation. Saved inputs get a separate handle, so that the caller may dispose its own. */
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
