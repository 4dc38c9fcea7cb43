import type {
  AttentionDropout,
  AttentionModifiers,
  AttentionState,
  HeadOrigin,
  KvBlock,
  QkvGrads,
  SavedRows,
  Tile,
} from "../attention/tile.ts";
import type { Slice } from "../mask/slice.ts";
import type { Span } from "../placement/span.ts";
import type { Shape } from "../shape.ts";
import type { DType } from "../storage.ts";
import type { Tensor } from "../tensor.ts";
import type { kernelEnumerations, kernelFeatures, kernelSchema, kernelStructures } from "./schema.ts";

/**
 * What a device computes. Every kernel enqueues on the device's stream and returns at once.
 *
 * Operands may be views of any strides (0 broadcasts an input) and of any dtype; outputs come first, are the caller's,
 * and may be strided but never overlap themselves. Rows of q, k, v and dOut are dense: their last stride is 1. All arithmetic accumulates in float32 and rounds once.
 * Core checks shapes before it calls; a kernel may assume them.
 *
 * The kernels are the rows of `kernelSchema`. A device in TypeScript implements this interface; one with native code gets it
 * from `@mosaic/runtime`.
 */
export type Kernels = { -readonly [K in keyof typeof kernelSchema]: (...args: KernelArguments<K>) => void };

/** The name of a kernel. */
export type KernelName = keyof typeof kernelSchema;

/** The arguments of a kernel, as a labelled tuple. */
export type KernelArguments<K extends KernelName> = LabelledArguments<(typeof kernelSchema)[K]>;

type LabelledArguments<Parameters extends readonly Field[]> = Parameters extends readonly [
  infer First extends Field & { readonly name: keyof ArgumentLabels<unknown> },
  ...infer Rest extends readonly Field[],
]
  ? [...ArgumentLabels<FieldValue<First>>[First["name"]], ...LabelledArguments<Rest>]
  : [];

/** The TypeScript value of a field. */
export type FieldValue<F extends Field> = F extends { readonly optional: true }
  ? RequiredValue<F> | null
  : RequiredValue<F>;

type RequiredValue<F extends Field> = F extends { readonly tensor: string }
  ? Tensor
  : F extends { readonly scalar: infer S }
    ? S extends "boolean"
      ? boolean
      : number
    : F extends { readonly enum: infer E extends keyof EnumTypes }
      ? EnumTypes[E]
      : F extends { readonly list: infer L extends keyof ListTypes }
        ? ListTypes[L]
        : F extends { readonly struct: infer S extends keyof StructTypes }
          ? StructTypes[S]
          : never;

/** The types of lists. */
interface ListTypes {
  spans: readonly Span[];
  slices: readonly Slice[];
  slicesBySample: readonly (readonly Slice[])[];
  strides: Shape;
}

/** The types of enumerations. */
interface EnumTypes {
  BinaryOp: BinaryOp;
  UnaryOp: UnaryOp;
  ReduceKind: ReduceKind;
  RandomKind: RandomKind;
  AdamKind: AdamKind;
}

/** The interfaces of structures. */
export interface StructTypes {
  AttentionState: AttentionState;
  KvBlock: KvBlock;
  SavedRows: SavedRows;
  QkvGrads: QkvGrads;
  Tile: Tile;
  AttentionModifiers: AttentionModifiers;
  AttentionDropout: AttentionDropout;
  HeadOrigin: HeadOrigin;
  LinearEpilogue: LinearEpilogue;
  NormParameters: NormParameters;
  NormStats: NormStats;
  NormGrads: NormGrads;
  RotaryAngles: RotaryAngles;
  RandomSpec: RandomSpec;
  DropoutSpec: DropoutSpec;
  CrossEntropyRows: CrossEntropyRows;
  CrossEntropySaved: CrossEntropySaved;
  CrossEntropySpec: CrossEntropySpec;
  AdamState: AdamState;
  AdamStep: AdamStep;
}

/** Names that parameters may have. Only the label of a tuple can name a parameter in a derived signature, and is no type. */
interface ArgumentLabels<T> {
  a: [a: T];
  accumulate: [accumulate: T];
  activation: [activation: T];
  angles: [angles: T];
  b: [b: T];
  dLoss: [dLoss: T];
  dOut: [dOut: T];
  dx: [dx: T];
  dy: [dy: T];
  epilogue: [epilogue: T];
  from: [from: T];
  gate: [gate: T];
  gradient: [gradient: T];
  grads: [grads: T];
  index: [index: T];
  into: [into: T];
  kind: [kind: T];
  kv: [kv: T];
  norm: [norm: T];
  op: [op: T];
  out: [out: T];
  q: [q: T];
  rows: [rows: T];
  saved: [saved: T];
  spec: [spec: T];
  state: [state: T];
  stats: [stats: T];
  step: [step: T];
  table: [table: T];
  target: [target: T];
  tile: [tile: T];
  value: [value: T];
  weight: [weight: T];
  x: [x: T];
}

/** The values of an enumeration; editors show its name where they would show the values if this did not distribute. */
type ValuesOf<E extends keyof typeof kernelEnumerations> = Distribute<(typeof kernelEnumerations)[E][number]>;
type Distribute<T extends string> = T extends string ? T : never;

/** a op b; max is the larger of the two. */
export type BinaryOp = ValuesOf<"BinaryOp">;
/** Functions of one element; gelu is the exact one, x · Φ(x), geluTanh its approximation by tanh, silu x · sigmoid(x). */
export type UnaryOp = ValuesOf<"UnaryOp">;
/** How elements are combined into one. */
export type ReduceKind = ValuesOf<"ReduceKind">;
/** The distribution of random numbers. */
export type RandomKind = ValuesOf<"RandomKind">;
/** The rule of an optimizer's step. */
export type AdamKind = ValuesOf<"AdamKind">;

/**
 * What `linear` does to a product before it is stored; null is nothing. With a gate the activation is applied to the gate, by which
 * the product is multiplied. `preActivation` is for the backward: the product with its bias.
 */
export interface LinearEpilogue {
  readonly bias: Tensor | null;
  readonly activation: UnaryOp | null;
  readonly gate: Tensor | null;
  readonly preActivation: Tensor | null;
}
/** [E] each, or null for 1 and 0; epsilon is added under the root. */
export interface NormParameters {
  readonly weight: Tensor | null;
  readonly bias: Tensor | null;
  readonly epsilon: number;
}
/** `mean` is null for RMSNorm. */
export interface NormStats {
  readonly mean: Tensor | null;
  readonly rstd: Tensor;
}
/** dWeight and dBias are null where not needed. */
export interface NormGrads {
  readonly dx: Tensor;
  readonly dWeight: Tensor | null;
  readonly dBias: Tensor | null;
}
/** Cosine and sine of the angle of each row's pairs; how the pairs lie; `inverse` turns back. */
export interface RotaryAngles {
  readonly cos: Tensor;
  readonly sin: Tensor;
  /** Pairs are features 2i and 2i + 1, not i and i + D/2. */
  readonly interleaved: boolean;
  readonly inverse: boolean;
}
/** uniform: in [low, high); normal: mean and standard deviation. `stream` distinguishes tensors of one seed. */
export type RandomSpec =
  | {
      readonly kind: "uniform";
      readonly low: number;
      readonly high: number;
      readonly seed: number;
      readonly stream: number;
    }
  | {
      readonly kind: "normal";
      readonly mean: number;
      readonly std: number;
      readonly seed: number;
      readonly stream: number;
    };

/** The numbers are `random`'s, uniform in [0, 1): element [i, j, …] has the one of index offset + i · strides[0] + j · strides[1] + …. */
export interface DropoutSpec {
  /** Of an element to become 0: in [0, 1). */
  readonly probability: number;
  readonly seed: number;
  readonly stream: number;
  readonly offset: number;
  readonly strides: Shape;
}

/** What crossEntropy computes of each row. */
export interface CrossEntropyRows {
  readonly loss: Tensor;
  readonly lse: Tensor;
  readonly counted: Tensor;
}
/** What crossEntropyBackward needs of the forward. */
export interface CrossEntropySaved {
  readonly x: Tensor;
  readonly target: Tensor;
  readonly lse: Tensor;
}
/** The target distribution has 1 − smoothing at its class, and smoothing / C of every class (Szegedy et al. 2016). */
export interface CrossEntropySpec {
  readonly smoothing: number;
  /** Rows with this target do not count. */
  readonly ignored: number;
}

/** adamW: the running means of g and g². scheduleFree: z, and the running mean of g²; the parameter is y. */
export interface AdamState {
  readonly parameter: Tensor;
  readonly first: Tensor;
  readonly second: Tensor;
}
/**
 * With g the gradient, v = second ← β₂ v + (1 − β₂) g² and n = √(v / correction2) + ε:
 *
 * adamW (Loshchilov and Hutter 2019): p ← (1 − rate · decay) p; m = first ← m + (1 − β₁)(g − m);
 * p ← p − rate / correction1 · m / n.
 *
 * scheduleFree (Defazio et al. 2024): u = g / n + decay · y; y ← y + mix (z − y) + rate (β₁ (1 − mix) − 1) u; z ← z − rate · u.
 */
export interface AdamStep {
  readonly kind: AdamKind;
  readonly rate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly decay: number;
  /** 1 − β₁ᵗ; scheduleFree has no use for it. */
  readonly correction1: number;
  /** 1 − β₂ᵗ. */
  readonly correction2: number;
  /** The weight of z in the average that x is; adamW has no use for it. */
  readonly mix: number;
}

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
  /** May be null. */
  readonly optional?: true;
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
