import { expectValue, formatValue, OptionError } from "../errors.ts";
import type { KernelName, Kernels } from "./kernels.ts";
import { checkKernel, operandsOf } from "./operands.ts";
import { kernelSchema } from "./schema.ts";

/**
 * Compiles a method with the parameters of a kernel from source that was put together from the schema. `free` are the names
 * that the source uses beside the parameters; the factory that it returns takes their values, and makes a method from them. After
 * the source, the method raises the versions of the memory that the kernel mutates.
 *
 * Source, for what is called millions of times: closures that look up the fields of structures by names in variables take up
 * to twice as long (decision 25). It is made of the schema's constants alone.
 *
 * @example
 * ```ts
 * import { compileKernel } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const factory = compileKernel("fill", "log.push(value);", ["log"]);
 * const log: number[] = [];
 * const fill = factory({ log });
 * using device = cpu();
 * using x = device.empty([2], "float32");
 * fill(x, 7);
 * log; // => [7]
 * ```
 * @throws OptionError for a kernel that the schema lacks, and for source that is no body of a function.
 */
export function compileKernel<K extends KernelName, Free extends string>(
  kernel: K,
  source: string,
  free: readonly Free[],
): (values: Readonly<Record<Free, unknown>>) => Kernels[K] {
  checkKernel("compileKernel", kernel);
  expectValue("compileKernel: source", typeof source === "string", "source text", source);
  const isEveryName = Array.isArray(free) && [...free].every((name) => typeof name === "string");
  expectValue("compileKernel: free", isEveryName, "an array of names", free);
  const parameters = kernelSchema[kernel].map(({ name }) => name).join(", ");
  const body = `${source}\n${mutationsOf(kernel)}`;
  const method = `return function ${kernel}(${parameters}) {\n${body}\n}\n//# sourceURL=mosaic-kernel-${kernel}`;
  try {
    // oxlint-disable-next-line typescript/no-implied-eval -- of constants; see above
    return new Function(`{ ${free.join(", ")} }`, method) as (values: Readonly<Record<Free, unknown>>) => Kernels[K];
  } catch (cause) {
    const parts = {
      where: `compileKernel: ${kernel}`,
      expected: "the body of a function",
      received: formatValue(source),
    };
    throw new OptionError({ ...parts, remedy: (cause as Error).message }, { cause });
  }
}

function mutationsOf(kernel: KernelName): string {
  const mutated = operandsOf(kernel).filter(({ isMutated }) => isMutated);
  const calls = mutated.map(({ name, isOptional }) => {
    return `${name}${isOptional ? "?" : ""}.storage.recordMutation(${JSON.stringify(kernel)});`;
  });
  return calls.join("\n");
}
