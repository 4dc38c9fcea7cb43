import { checkTensor } from "../arguments.ts";
import { checkFunction } from "../errors.ts";
import { scope } from "../scope.ts";
import { Tensor } from "../tensor.ts";
import { untracked } from "../tracking.ts";
import { reshape } from "../views.ts";
import { backward } from "./backward.ts";
import { preserveRngState } from "../random.ts";
import { enableGrad, isGradEnabled } from "./node.ts";
import { checkVersions, recordVersions } from "./saved-tensors.ts";

/**
 * Runs `body` and keeps only its inputs; the backward computes it again. Costs one more forward, saves the memory of
 * everything inside (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). `body` runs in a `scope`.
 *
 * `body` must be pure: the same inputs give the same result. Random tensors are the same both times: dropout inside
 * needs no care. Gradients reach the inputs and every leaf (parameter) that
 * `body` uses; another tensor with history must be passed as an input. An input that was mutated before the backward is an error.
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
 */
export function checkpoint<Inputs extends readonly Tensor[]>(
  body: (...inputs: Inputs) => Tensor,
  ...inputs: Inputs
): Tensor {
  checkFunction("checkpoint: body", body);
  for (const input of inputs) checkTensor("checkpoint", input);
  const run = (...each: Inputs): Tensor => scope(() => viewIfInput(runBody(body, each), each));
  if (!isGradEnabled()) return run(...inputs);
  // Recording finds whether a gradient is wanted at all, even if only by leaves that the body brings along.
  const within = preserveRngState();
  using traced = within(() => run(...inputs));
  if (!traced.node) return traced.detach();
  const kept = untracked(() => inputs.map((input) => input.detach()));
  const saved = Object.fromEntries(kept.map((input, i) => [`input ${i}`, input]));
  const versions = recordVersions(saved);
  return traced.detach().record(
    inputs,
    {
      name: "checkpoint",
      backward(dOutput, needed) {
        checkVersions("checkpoint", saved, versions);
        return recompute((...each: Inputs) => within(() => run(...each)), kept, { dOutput, needed });
      },
      free: () => kept.forEach((input) => input.dispose()),
    },
    true,
  );
}

function runBody<Inputs extends readonly Tensor[]>(body: (...inputs: Inputs) => Tensor, inputs: Inputs): Tensor {
  const result = body(...inputs);
  checkTensor("checkpoint: return value of the body", result);
  return result;
}

/** A body may give back what it was given: the result is a tensor of its own all the same. */
function viewIfInput(result: Tensor, inputs: readonly Tensor[]): Tensor {
  return inputs.includes(result) ? reshape(result, result.shape) : result;
}

function recompute<Inputs extends readonly Tensor[]>(
  body: (...inputs: Inputs) => Tensor,
  kept: readonly Tensor[],
  { dOutput, needed }: { dOutput: Tensor; needed: readonly boolean[] },
): (Tensor | null)[] {
  const inputs = kept.map((input, i) => {
    const leaf = input.detach();
    leaf.requiresGrad = needed[i]!;
    return leaf;
  });
  try {
    using output = enableGrad(() => body(...(inputs as readonly Tensor[] as Inputs)));
    backward(output, dOutput);
    return inputs.map((input) => input.grad);
  } catch (error) {
    for (const input of inputs) input.grad?.dispose();
    throw error;
  } finally {
    for (const input of inputs) input.dispose();
  }
}
