import type { DType } from "../dtype.ts";
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
const operandCache = new Map<KernelName, readonly Operand[]>();

function collectOperands(parameters: readonly Field[]): Operand[] {
  return parameters.flatMap((field, parameter) => {
    if ("tensor" in field) {
      const { updatedIf } = field;
      const readIf = updatedIf === undefined ? undefined : parameters.findIndex(({ name }) => name === updatedIf);
      return [createOperand(field, field.tensor, { parameter, readIf })];
    }
    if (!("struct" in field)) return [];
    const inner: readonly Field[] = kernelStructures[field.struct];
    return inner.flatMap((each) => {
      if (!("tensor" in each)) return [];
      return [createOperand(each, field.access ?? each.tensor, { parameter, within: field.name })];
    });
  });
}

interface OperandLocation {
  readonly parameter: number;
  readonly within?: string;
  readonly readIf?: number | undefined;
}

function createOperand(field: TensorField, access: Access, { parameter, within, readIf }: OperandLocation): Operand {
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
  let found = operandCache.get(kernel);
  if (found === undefined) operandCache.set(kernel, (found = collectOperands(kernelSchema[kernel])));
  return found;
}

/** The tensor that an operand is in a call with these arguments; null if it is absent. */
export function tensorOf({ parameter, field }: Operand, args: readonly unknown[]): Tensor | null {
  const argument = args[parameter];
  const tensor = field === undefined ? argument : (argument as Readonly<Record<string, unknown>>)[field];
  return (tensor as Tensor | null | undefined) ?? null;
}
