import { expectValue } from "../errors.ts";
import type { KernelName, Kernels } from "./kernels.ts";
import { checkKernel, operandsOf, tensorOf } from "./operands.ts";

/**
 * The same kernels, but each call raises the versions of the memory that it mutates, as the schema states: the check that a tensor
 * saved for a backward was not mutated depends on it. For a device in TypeScript; methods of `compileKernel` raise them
 * themselves.
 *
 * @example
 * ```ts
 * import { ones, versionedKernels } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * const kernels = versionedKernels({ ...device.kernels, fill() {} });
 * using x = ones(device, [2]);
 * const before = x.storage.version;
 * kernels.fill(x, 7);
 * x.storage.version - before; // => 1
 * ```
 */
export function versionedKernels(kernels: Kernels): Kernels {
  expectValue("versionedKernels", typeof kernels === "object" && kernels !== null, "kernels by name", kernels);
  const entries = Object.entries(kernels) as [KernelName, (...args: readonly unknown[]) => void][];
  const versioned = entries.map(([name, run]) => {
    checkKernel("versionedKernels", name);
    expectValue(`versionedKernels: ${name}`, typeof run === "function", "a function", run);
    const mutated = operandsOf(name).filter(({ isMutated }) => isMutated);
    const method = (...args: readonly unknown[]): void => {
      run(...args);
      for (const operand of mutated) tensorOf(operand, args)?.storage.recordMutation(name);
    };
    return [name, method] as const;
  });
  return Object.fromEntries(versioned) as unknown as Kernels;
}
