import type { DType } from "../dtype.ts";
import type { kernelEnumerations, kernelFeatures, kernelStructures } from "./schema.ts";

// What rows of the kernel schema are made of.

/** What a kernel does with an operand's elements: reads them, writes every one of them unread, or reads and writes them. */
export type Access = "read" | "write" | "update";

/** A part of the contract that a device need not have; see `kernelFeatures`. */
export type KernelFeature = (typeof kernelFeatures)[number];

/** A tensor. */
export interface TensorField {
  readonly name: string;
  readonly tensor: Access;
  /** Of a tensor that is written: the boolean parameter that makes this an update. */
  readonly updatedIf?: string;
  /** "[..,M,K]": lengths of the axes by letter, ".." any leading axes. Absent: what broadcasts to the output, or is it. */
  readonly shape?: string;
  /** The only dtype allowed. Absent: any. */
  readonly dtype?: DType;
  /** May be null; or absent, in a structure whose interface states so. */
  readonly optional?: true;
  readonly feature?: KernelFeature;
}

/** A number or a boolean, by the type that native code takes it as. */
export interface ScalarField {
  readonly name: string;
  readonly scalar: "boolean" | "float32" | "float64" | "int64" | "uint64";
  /** Its names in TypeScript, by the structure's `kind`, where those differ. */
  readonly names?: Readonly<Record<string, string>>;
  /** May be absent, and is then 0. */
  readonly optional?: true;
  readonly feature?: KernelFeature;
}

/** A value of an enumeration. */
export interface EnumField {
  readonly name: string;
  readonly enum: keyof typeof kernelEnumerations;
}

/** A list: spans or slices of positions, slices for each sample of the batch, or strides in elements. */
export interface ListField {
  readonly name: string;
  readonly list: "spans" | "slices" | "slicesBySample" | "strides";
  /** May be absent, and is then empty. */
  readonly optional?: true;
  readonly feature?: KernelFeature;
}

/** Several fields under one name. */
export interface StructField {
  readonly name: string;
  readonly struct: keyof typeof kernelStructures;
  /** "read": access as declared by the structure's fields does not hold here, its tensors are only read. */
  readonly access?: "read";
  /** May be null or absent. */
  readonly optional?: true;
  readonly feature?: KernelFeature;
}

/** A parameter of a kernel, or a field of a structure. */
export type Field = TensorField | ScalarField | EnumField | ListField | StructField;
