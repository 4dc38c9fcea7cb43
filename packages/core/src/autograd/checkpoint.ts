import { checkTensor } from "../arguments.ts";
import { checkFunction } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { scope } from "../scope.ts";
import { Tensor } from "../tensor.ts";
import { runUntracked } from "../tracking.ts";
import { reshape } from "../views.ts";
import { backward } from "./backward.ts";
import { SavedAttention } from "./saved-attention.ts";
import { preserveRngState } from "../random.ts";
import { enableGrad, isGradEnabled } from "./node.ts";
import { checkVersions, recordVersions } from "./saved-tensors.ts";

export const activationCheckpointOptions = defineOptions("checkpoint", {
  /**
   * Keep (out, lse) of every `attention` inside, which takes about as much memory as its queries. The backward then
   * neither recomputes attention's forward nor repeats its communication (DistFlashAttention, Li et al. 2023). Default
   * false.
   */
  keepAttention: option.boolean({ default: false }),
});
/** Options of `checkpoint`. */
export type ActivationCheckpointOptions = OptionsOf<typeof activationCheckpointOptions>;

/** The function to recompute. It maps tensors to a tensor. */
type Body<Inputs extends readonly Tensor[]> = (...inputs: Inputs) => Tensor;

/**
 * Runs `body` and saves only its inputs; the backward recomputes it. This costs one additional forward and saves the
 * memory of all intermediates (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). `body` runs in a
 * `scope`.
 *
 * `body` must be pure: the same inputs give the same result. Random tensors are the same in the recomputation, so
 * dropout is safe. The backward throws an AutogradError if the recomputation draws more or fewer of them than the
 * forward, for example after `eval()`. Gradients flow to the inputs and to every leaf (parameter) that `body` uses. Any
 * other tensor with gradient history must be passed as an input. Mutating an input before the backward is an error.
 *
 * @example
 * ```ts
 * import { checkpoint, fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * const x = fromArray(device, [3], []);
 * x.requiresGrad = true;
 * using y = checkpoint((x) => x.square().square(), x);
 * y.backward();
 * await x.grad?.item(); // => 108
 * ```
 * With `keepAttention`, the results of attention are also kept:
 *
 * ```ts
 * import { attention, checkpoint, init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using x = randn(ctx, [1, 2, 8, 4]);
 * x.requiresGrad = true;
 * using y = checkpoint({ keepAttention: true }, (x) => attention(ctx, x, x, x.square()).tanh(), x);
 * using loss = y.sum();
 * loss.backward();
 * x.grad?.shape; // => [1, 2, 8, 4]
 * ```
 */
export function checkpoint<Inputs extends readonly Tensor[]>(body: Body<Inputs>, ...inputs: Inputs): Tensor;
export function checkpoint<Inputs extends readonly Tensor[]>(
  options: ActivationCheckpointOptions,
  body: Body<Inputs>,
  ...inputs: Inputs
): Tensor;
export function checkpoint(
  ...args: readonly [Body<readonly Tensor[]>, ...Tensor[]] | readonly [object, Body<readonly Tensor[]>, ...Tensor[]]
): Tensor {
  const hasOptions = typeof args[0] !== "function";
  const options = activationCheckpointOptions.parse(hasOptions ? args[0] : undefined);
  const [body, ...inputs] = (hasOptions ? args.slice(1) : args) as [Body<readonly Tensor[]>, ...Tensor[]];
  checkFunction("checkpoint: body", body);
  for (const input of inputs) checkTensor("checkpoint", input);
  return runCheckpoint(body, inputs, options.keepAttention || SavedAttention.isActive);
}

function runCheckpoint(body: Body<readonly Tensor[]>, inputs: readonly Tensor[], keepAttention: boolean): Tensor {
  // A body may return one of its inputs or another tensor of the caller. `reshape` ensures that the result is a new
  // handle that is recorded on the tape.
  const runScoped: Body<readonly Tensor[]> = (...scopedInputs) =>
    scope(() => {
      const result = runBody(body, scopedInputs);
      return reshape(result, result.shape);
    });
  if (!isGradEnabled()) return runScoped(...inputs);
  // The forward is recorded to find out whether the result requires grad, because leaves that only the body uses may
  // require it.
  const runWithRngState = preserveRngState();
  const attention = keepAttention ? new SavedAttention() : undefined;
  const runWithSavedState = (recompute: () => Tensor): Tensor =>
    runWithRngState(() => (attention ? attention.run(recompute) : recompute()));
  using forwardOutput = runForwardPass(() => runWithSavedState(() => runScoped(...inputs)), attention);
  if (!forwardOutput.node) {
    attention?.[Symbol.dispose]();
    return forwardOutput.detach();
  }
  const savedInputs = runUntracked(() => inputs.map((input) => input.detach()));
  const savedInputsByName = Object.fromEntries(savedInputs.map((input, i) => [`input ${i}`, input]));
  const versions = recordVersions(savedInputsByName);
  return forwardOutput.detach().record(
    inputs,
    {
      name: "checkpoint",
      backward(dOutput, needsInputGrad) {
        checkVersions("checkpoint", savedInputsByName, versions);
        return recomputeGradients((...each) => runWithSavedState(() => runScoped(...each)), savedInputs, {
          dOutput,
          needsInputGrad,
        });
      },
      free() {
        for (const input of savedInputs) input.dispose();
        attention?.[Symbol.dispose]();
      },
    },
    true,
  );
}

/** Runs the forward. If it throws, releases what was saved. */
function runForwardPass(computeForward: () => Tensor, attention: SavedAttention | undefined): Tensor {
  try {
    return computeForward();
  } catch (error) {
    attention?.[Symbol.dispose]();
    throw error;
  }
}

function runBody(body: Body<readonly Tensor[]>, inputs: readonly Tensor[]): Tensor {
  const result = body(...inputs);
  checkTensor("checkpoint: return value of the body", result);
  return result;
}

function recomputeGradients(
  body: Body<readonly Tensor[]>,
  savedInputs: readonly Tensor[],
  { dOutput, needsInputGrad }: { dOutput: Tensor; needsInputGrad: readonly boolean[] },
): (Tensor | null)[] {
  const inputs = savedInputs.map((input, i) => {
    const leaf = input.detach();
    leaf.requiresGrad = needsInputGrad[i]!;
    return leaf;
  });
  try {
    using output = enableGrad(() => body(...inputs));
    backward(output, dOutput);
    return inputs.map((input) => input.grad);
  } catch (error) {
    for (const input of inputs) input.grad?.dispose();
    throw error;
  } finally {
    for (const input of inputs) input.dispose();
  }
}
