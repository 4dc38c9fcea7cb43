import { expectValue, formatValue, MosaicError, OptionError } from "../errors.ts";
import type { DType } from "../storage.ts";
import type { Tensor } from "../tensor.ts";
import type { Access, Field, KernelFeature, KernelName, Kernels, TensorField } from "./kernels.ts";
import { kernelSchema, kernelStructures } from "./schema.ts";

/** A tensor argument of a kernel, or a tensor field of a structure argument. */
export interface Operand {
  /** `out`, or `state.out` for a field of a structure. */
  readonly name: string;
  /** Index of the argument that is or contains the tensor. */
  readonly parameter: number;
  /** Name of the field, if the argument is a structure. */
  readonly field: string | undefined;
  /** Whether the kernel reads the elements that the tensor has before the call. */
  readonly isRead: boolean;
  /** Index of the boolean argument that makes the kernel read the elements although `isRead` is false. */
  readonly readFlagIndex: number | undefined;
  /** Whether the kernel changes its elements. */
  readonly isMutated: boolean;
  readonly isOptional: boolean;
  /** "[..,M,K]", as in the schema. */
  readonly shape: string | undefined;
  /** The only dtype allowed. */
  readonly dtype: DType | undefined;
  readonly feature: KernelFeature | undefined;
}

/** Operands by kernel, collected on demand, because a program needs few kernels. */
const operandCache = new Map<KernelName, readonly Operand[]>();

function collectOperands(parameters: readonly Field[]): Operand[] {
  return parameters.flatMap((field, parameter) => {
    if ("tensor" in field) {
      const { updatedIf } = field;
      const readFlagIndex =
        updatedIf === undefined ? undefined : parameters.findIndex(({ name }) => name === updatedIf);
      return [createOperand(field, field.tensor, { parameter, readFlagIndex })];
    }
    if (!("struct" in field)) return [];
    const structFields: readonly Field[] = kernelStructures[field.struct];
    return structFields.flatMap((each) => {
      if (!("tensor" in each)) return [];
      return [createOperand(each, field.access ?? each.tensor, { parameter, containingStruct: field.name })];
    });
  });
}

interface OperandLocation {
  readonly parameter: number;
  readonly containingStruct?: string;
  readonly readFlagIndex?: number | undefined;
}

function createOperand(
  field: TensorField,
  access: Access,
  { parameter, containingStruct, readFlagIndex }: OperandLocation,
): Operand {
  return {
    name: containingStruct === undefined ? field.name : `${containingStruct}.${field.name}`,
    parameter,
    field: containingStruct === undefined ? undefined : field.name,
    isRead: access !== "write",
    readFlagIndex,
    isMutated: access !== "read",
    isOptional: field.optional ?? false,
    shape: field.shape,
    dtype: field.dtype,
    feature: field.feature,
  };
}

/**
 * Returns the tensors among a kernel's arguments, in call order, with the kernel's access to each.
 *
 * @example
 * ```ts
 * import { getOperands } from "@mosaic/core";
 * const mutated = getOperands("adam").filter(({ isMutated }) => isMutated);
 * mutated.map(({ name }) => name); // => ["state.parameter", "state.first", "state.second"]
 * ```
 */
export function getOperands(kernel: KernelName): readonly Operand[] {
  let operands = operandCache.get(kernel);
  if (operands !== undefined) return operands;
  checkKernel("getOperands", kernel);
  operandCache.set(kernel, (operands = collectOperands(kernelSchema[kernel])));
  return operands;
}

/** Throws an OptionError unless `kernel` is the name of a kernel. */
function checkKernel(where: string, kernel: unknown): asserts kernel is KernelName {
  const isKernelName = typeof kernel === "string" && Object.hasOwn(kernelSchema, kernel);
  expectValue(where, isKernelName, "the name of a kernel in the schema", kernel);
}

/** Returns the tensor of an operand in a call with these arguments; null if it is absent. */
export function getTensor(operand: Operand, args: readonly unknown[]): Tensor | null {
  const { parameter, field } = operand ?? {};
  const isOperand = typeof parameter === "number" && (field === undefined || typeof field === "string");
  if (!isOperand) expectValue("getTensor", false, "an Operand returned by getOperands", operand);
  if (!Array.isArray(args)) expectValue("getTensor", false, "an array of kernel arguments", args);
  const argument = args[parameter];
  const tensor = field === undefined ? argument : (argument as Readonly<Record<string, unknown>> | undefined)?.[field];
  return (tensor as Tensor | null | undefined) ?? null;
}

/**
 * Wraps kernels so that each call increments the versions of the storages that it mutates according to the schema. The
 * check that a tensor saved for a backward was not mutated depends on it. For devices in TypeScript; methods of
 * `compileKernel` already do this.
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
  const versionedEntries = entries.map(([name, run]) => {
    checkKernel("versionedKernels", name);
    expectValue(`versionedKernels: ${name}`, typeof run === "function", "a function", run);
    const mutatedOperands = getOperands(name).filter(({ isMutated }) => isMutated);
    const method = (...args: readonly unknown[]): void => {
      run(...args);
      for (const operand of mutatedOperands) getTensor(operand, args)?.storage.recordMutation(name);
    };
    return [name, method] as const;
  });
  return Object.fromEntries(versionedEntries) as unknown as Kernels;
}

/**
 * Compiles a method with the parameters of a kernel from source text that was generated from the schema.
 * `freeVariables` are the names that the source uses beside the parameters. Returns a factory that binds their values
 * and returns the method. After the source, the method increments the versions of the storages that the kernel mutates.
 *
 * Methods are compiled because they are called millions of times: closures that look up fields by names held in
 * variables take up to twice as long (decision 25). The source consists only of constants of the schema.
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
 * @throws OptionError for a kernel that is not in the schema, and for source that is not a function body.
 */
export function compileKernel<K extends KernelName, Free extends string>(
  kernel: K,
  source: string,
  freeVariables: readonly Free[],
): (values: Readonly<Record<Free, unknown>>) => Kernels[K] {
  checkKernel("compileKernel", kernel);
  expectValue("compileKernel: source", typeof source === "string", "source text", source);
  const areNames = Array.isArray(freeVariables) && [...freeVariables].every((name) => typeof name === "string");
  expectValue("compileKernel: freeVariables", areNames, "an array of names", freeVariables);
  const parameters = kernelSchema[kernel].map(({ name }) => name).join(", ");
  const body = `${source}\n${generateMutationCalls(kernel)}`;
  const method = `return function ${kernel}(${parameters}) {\n${body}\n}\n//# sourceURL=mosaic-kernel-${kernel}`;
  try {
    // oxlint-disable-next-line typescript/no-implied-eval -- of constants; see above
    return new Function(`{ ${freeVariables.join(", ")} }`, method) as (
      values: Readonly<Record<Free, unknown>>,
    ) => Kernels[K];
  } catch (cause) {
    if (cause instanceof EvalError) throw codeGenerationDisabledError(cause);
    const details = {
      where: `compileKernel: ${kernel}`,
      expected: "a function body",
      received: formatValue(source),
    };
    throw new OptionError({ ...details, remedy: (cause as Error).message }, { cause });
  }
}

function codeGenerationDisabledError(cause: EvalError): MosaicError {
  const details = {
    where: "compileKernel",
    expected: "a process that may generate code from strings, as the calls of kernels are generated from their schema",
    received: "one in which Node has disabled it",
    remedy: "omit --disallow-code-generation-from-strings",
  };
  return new MosaicError(details, { cause });
}

function generateMutationCalls(kernel: KernelName): string {
  const mutatedOperands = getOperands(kernel).filter(({ isMutated }) => isMutated);
  const calls = mutatedOperands.map(({ name, isOptional }) => {
    return `${name}${isOptional ? "?" : ""}.storage.recordMutation(${JSON.stringify(kernel)});`;
  });
  return calls.join("\n");
}
