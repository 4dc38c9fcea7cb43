import { checkFunction } from "../errors.ts";
import { checkNullableTensor } from "../arguments.ts";
import { Tensor } from "../tensor.ts";
import { adopt, releaseOnError, track, TensorTracker, untracked } from "../tracking.ts";
import { isGradEnabled, noGrad } from "./node.ts";
import { checkVersions, type SavedValues, recordVersions } from "./saved-tensors.ts";

/**
 * An operation: its forward beside its backward. Neither is itself recorded, and one that throws leaves nothing behind:
 * the tensors that it made are disposed.
 */
export interface OpDefinition<Inputs extends readonly (Tensor | null)[], Options, S extends SavedValues> {
  /** As it stands in messages. */
  readonly name: string;
  /**
   * `output` must be a new tensor. `saved` may hold inputs and the output (they are kept by a handle of their own) and
   * tensors made here (which the tape takes over): all are disposed after the backward, or when the tape is dropped. The
   * backward is an error if one was mutated meanwhile.
   */
  forward(inputs: Inputs, options: Options): { readonly output: Tensor; readonly saved: S };
  /**
   * One gradient per input, of its shape and dtype, or null where `needed` is false or nothing flows. Returned tensors
   * pass to the caller; `dOutput` may be among them.
   */
  backward(saved: S, dOutput: Tensor, needed: readonly boolean[]): readonly (Tensor | null)[];
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
    // Of what the forward creates, a scope sees the output alone: what is saved is the tape's.
    const tracker = new TensorTracker();
    const { output, saved } = track(tracker, () => noGrad(() => op.forward(inputs, options)));
    tracker.untrackAll();
    adopt(output);
    const shared = [...inputs, output];
    if (!isGradEnabled() || !inputs.some(needsGradient)) {
      for (const value of Object.values(saved)) if (isIntermediate(value, shared)) value.dispose();
      return output;
    }
    const kept = detachShared(saved, shared);
    const versions = recordVersions(kept);
    return output.record(inputs, {
      name: op.name,
      backward(dOutput, needed) {
        checkVersions(op.name, kept, versions);
        return releaseOnError(() => op.backward(kept, dOutput, needed));
      },
      free: () => disposeSaved(kept),
    });
  };
}

function needsGradient(input: Tensor | null): boolean {
  return input !== null && (input.requiresGrad || input.node !== undefined);
}

/** Whether a saved value is a tensor that the forward made. */
function isIntermediate(value: unknown, shared: readonly (Tensor | null)[]): value is Tensor {
  return value instanceof Tensor && !shared.includes(value);
}

/** Gives what belongs to others a handle of its own, so that they may dispose theirs. */
function detachShared<S extends SavedValues>(saved: S, shared: readonly (Tensor | null)[]): S {
  return untracked(() => {
    const kept: Record<string, unknown> = {};
    for (const name in saved) {
      const value: unknown = saved[name];
      kept[name] = value instanceof Tensor && shared.includes(value) ? value.detach() : value;
    }
    return kept as S;
  });
}

function disposeSaved(saved: SavedValues): void {
  for (const name in saved) {
    const value = saved[name];
    if (value instanceof Tensor) value.dispose();
  }
}
