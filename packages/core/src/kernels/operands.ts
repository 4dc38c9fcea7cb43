import type { DType } from "../dtype.ts";
import { expectValue } from "../errors.ts";
import type { Tensor } from "../tensor.ts";
import type { Access, Field, KernelFeature, TensorField } from "./fields.ts";
import type { KernelName } from "./kernels.ts";
import { kernelSchema, kernelStructures } from "./schema.ts";

/** A tensor among the arguments of a kernel, alone or within a structure. */
export interface Operand {
  /** `out`, or `state.out` where it lies within a structure. */
  readonly name: string;
  /** Which argument it is, or is within. */
  readonly parameter: number;
  /** Its name within that argument, if this is a structure. */
  readonly field: string | undefined;
  /** Whether the kernel reads the elements that are there before the call. */
  readonly isRead: boolean;
  /** The boolean argument that makes the kernel read them, although `isRead` is false. */
  readonly readIf: number | undefined;
  /** Whether the kernel changes its elements. */
  readonly isMutated: boolean;
  readonly isOptional: boolean;
  /** "[..,M,K]", as in the schema. */
  readonly shape: string | undefined;
  /** The only dtype allowed. */
  readonly dtype: DType | undefined;
  readonly feature: KernelFeature | undefined;
}

/** Of the kernels that were called for: a program needs few of them. */
const operands = new Map<KernelName, readonly Operand[]>();

function operandsIn(parameters: readonly Field[]): Operand[] {
  return parameters.flatMap((field, parameter) => {
    if ("tensor" in field) {
      const { updatedIf } = field;
      const readIf = updatedIf === undefined ? undefined : parameters.findIndex(({ name }) => name === updatedIf);
      return [operandOf(field, field.tensor, { parameter, readIf })];
    }
    if (!("struct" in field)) return [];
    const inner: readonly Field[] = kernelStructures[field.struct];
    return inner.flatMap((each) => {
      if (!("tensor" in each)) return [];
      return [operandOf(each, field.access ?? each.tensor, { parameter, within: field.name })];
    });
  });
}

interface Place {
  readonly parameter: number;
  readonly within?: string;
  readonly readIf?: number | undefined;
}

function operandOf(field: TensorField, access: Access, { parameter, within, readIf }: Place): Operand {
  return {
    name: within === undefined ? field.name : `${within}.${field.name}`,
    parameter,
    field: within === undefined ? undefined : field.name,
    isRead: access !== "write",
    readIf,
    isMutated: access !== "read",
    isOptional: field.optional ?? false,
    shape: field.shape,
    dtype: field.dtype,
    feature: field.feature,
  };
}

/**
 * The tensors among a kernel's arguments, in the order of the call, and what the kernel does with each.
 *
 * @example
 * ```ts
 * import { operandsOf } from "@mosaic/core";
 * const mutated = operandsOf("adam").filter(({ isMutated }) => isMutated);
 * mutated.map(({ name }) => name); // => ["state.parameter", "state.first", "state.second"]
 * ```
 */
export function operandsOf(kernel: KernelName): readonly Operand[] {
  let found = operands.get(kernel);
  if (found !== undefined) return found;
  checkKernel("operandsOf", kernel);
  operands.set(kernel, (found = operandsIn(kernelSchema[kernel])));
  return found;
}

/** Throws an OptionError unless `kernel` is the name of a kernel. */
export function checkKernel(where: string, kernel: unknown): asserts kernel is KernelName {
  const isName = typeof kernel === "string" && Object.hasOwn(kernelSchema, kernel);
  expectValue(where, isName, "the name of a kernel of the schema", kernel);
}

/** The tensor that an operand is in a call with these arguments; null if it is absent. */
export function tensorOf(operand: Operand, args: readonly unknown[]): Tensor | null {
  const { parameter, field } = operand ?? {};
  const isOperand = typeof parameter === "number" && (field === undefined || typeof field === "string");
  if (!isOperand) expectValue("tensorOf", false, "an Operand, as operandsOf returns", operand);
  if (!Array.isArray(args)) expectValue("tensorOf", false, "the arguments of a kernel, an array", args);
  const argument = args[parameter];
  const tensor = field === undefined ? argument : (argument as Readonly<Record<string, unknown>> | undefined)?.[field];
  return (tensor as Tensor | null | undefined) ?? null;
}
