import { checkTensor } from "../arguments.ts";
import { AutogradError, checkFunction, expectValue } from "../errors.ts";
import { formatShape } from "../shape.ts";
import { Tensor } from "../tensor.ts";

/** Values that an operation saves for its backward, by name: tensors and any other values. */
export type SavedValues = Readonly<Record<string, unknown>>;

/** The versions of saved tensors, in the order of `SavedValues`. */
export type SavedVersions = readonly number[];

/** Returns the versions of the tensors among saved values, for `checkVersions`. */
export function recordVersions(saved: SavedValues): SavedVersions {
  const versions: number[] = [];
  for (const name in saved) {
    const value = saved[name];
    if (value instanceof Tensor) versions.push(value.storage.version);
  }
  return versions;
}

/**
 * Throws an AutogradError that names the first saved tensor whose memory was mutated after it was saved, because the
 * gradient would be computed from different values.
 */
export function checkVersions(operation: string, saved: SavedValues, versions: SavedVersions): void {
  let i = 0;
  for (const name in saved) {
    const value = saved[name];
    if (!(value instanceof Tensor)) continue;
    const version = versions[i++]!;
    if (value.storage.version !== version) throw mutationError(`backward of ${operation}`, [name, value], version);
  }
}

function mutationError(where: string, [name, x]: readonly [string, Tensor], version: number): AutogradError {
  const { storage } = x;
  return new AutogradError({
    where,
    expected: `"${name}" ${formatShape(x.shape)} ${x.dtype} at version ${version}, as saved in the forward`,
    received: `version ${storage.version}, mutated by "${storage.mutation}"`,
    remedy: "mutate a tensor after the backward (parameters after loss.backward()), or mutate a copy",
  });
}

/**
 * Runs `body` (synchronous) without raising the versions of `tensors` when it mutates them. Use it for memory whose
 * saved values are restored before the backward, such as a sharded parameter that is released after the forward and
 * gathered again for the backward. PyTorch's FSDP uses `_unsafe_preserve_version_counter` for this.
 *
 * @example
 * ```ts
 * import { fromArray, ones, preserveVersion } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using weight = ones(device, [2]);
 * weight.requiresGrad = true;
 * using x = fromArray(device, [3, 4], [2]);
 * x.requiresGrad = true;
 * using y = x.mul(weight).sum();
 * preserveVersion([weight], () => device.kernels.fill(weight, 0)); // released …
 * preserveVersion([weight], () => device.kernels.fill(weight, 1)); // … and gathered again
 * y.backward();
 * Array.from(await x.grad!.read()); // => [1, 1]
 * ```
 */
export function preserveVersion<T>(tensors: readonly Tensor[], body: () => T): T {
  checkFunction("preserveVersion", body);
  expectValue("preserveVersion", Array.isArray(tensors), "an array of tensors", tensors);
  for (const x of tensors) checkTensor("preserveVersion", x);
  const [firstTensor, ...remainingTensors] = tensors;
  return firstTensor ? firstTensor.storage.preserveVersion(() => preserveVersion(remainingTensors, body)) : body();
}
