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
 * The kernels of a device. Every kernel is enqueued on the device's stream and returns immediately.
 *
 * Operands may be views with any strides (0 broadcasts an input) and any dtype. Outputs come first and are allocated by
 * the caller; they may be strided, but their elements must not overlap. The last stride of q, k, v and dOut is 1. All
 * arithmetic accumulates in float32 and rounds once. Core checks shapes before the call, so a kernel may rely on them.
 *
 * The kernels are the rows of `kernelSchema`. A device in TypeScript implements this interface. For a device in native
 * code, `@mosaic/runtime` provides it.
 */
export type Kernels = { -readonly [K in keyof typeof kernelSchema]: (...args: KernelArguments<K>) => void };

/** The name of a kernel. */
export type KernelName = keyof typeof kernelSchema;

/** The arguments of a kernel, as a labeled tuple. */
export type KernelArguments<K extends KernelName> = LabeledArguments<(typeof kernelSchema)[K]>;

type LabeledArguments<Parameters extends readonly Field[]> = Parameters extends readonly [
  infer First extends Field & { readonly name: keyof ArgumentLabels<unknown> },
  ...infer Rest extends readonly Field[],
]
  ? [...ArgumentLabels<FieldValue<First>>[First["name"]], ...LabeledArguments<Rest>]
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

/**
 * Allowed names of parameters. In a derived signature, only tuple labels can name parameters, and a label cannot be
 * computed by a type.
 */
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

/** The values of an enumeration. It distributes over the union so that editors show the values instead of the name. */
type ValuesOf<E extends keyof typeof kernelEnumerations> = Distribute<(typeof kernelEnumerations)[E][number]>;
type Distribute<T extends string> = T extends string ? T : never;

/** Binary operation a op b; max is the larger of the two. */
export type BinaryOp = ValuesOf<"BinaryOp">;
/** Elementwise functions. gelu is x · Φ(x), geluTanh its tanh approximation, and silu x · sigmoid(x). */
export type UnaryOp = ValuesOf<"UnaryOp">;
/** Operator of a reduction. */
export type ReduceKind = ValuesOf<"ReduceKind">;
/** The distribution of random numbers. */
export type RandomKind = ValuesOf<"RandomKind">;
/** Update rule of the optimizer. */
export type AdamKind = ValuesOf<"AdamKind">;

/**
 * Epilogue of `linear`, applied to the product before it is stored. Steps that are null are skipped. With a gate, the
 * activation is applied to the gate, and the product is multiplied by the result. `preActivation` receives the product
 * plus bias, for the backward.
 */
export interface LinearEpilogue {
  readonly bias: Tensor | null;
  readonly activation: UnaryOp | null;
  readonly gate: Tensor | null;
  readonly preActivation: Tensor | null;
}
/** Weight and bias [E], or null for 1 and 0. epsilon is added to the radicand. */
export interface NormParameters {
  readonly weight: Tensor | null;
  readonly bias: Tensor | null;
  readonly epsilon: number;
}
/** Statistics of each row. `mean` is null for RMSNorm. */
export interface NormStats {
  readonly mean: Tensor | null;
  readonly rstd: Tensor;
}
/** Gradients of a norm. dWeight and dBias are null if not needed. */
export interface NormGrads {
  readonly dx: Tensor;
  readonly dWeight: Tensor | null;
  readonly dBias: Tensor | null;
}
/** Cosine and sine of the angles of each row's pairs. `inverse` rotates by the negative angles. */
export interface RotaryAngles {
  readonly cos: Tensor;
  readonly sin: Tensor;
  /** If true, pairs are features 2i and 2i + 1, otherwise i and i + D/2. */
  readonly interleaved: boolean;
  readonly inverse: boolean;
}
/**
 * Distribution and generator state of random numbers. uniform: in [low, high). normal: mean and standard deviation.
 * `stream` distinguishes tensors with the same seed.
 */
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

/**
 * Random numbers are those of the kernel `random`, uniform in [0, 1). Element [i, j, …] uses the number with index
 * offset + i · strides[0] + j · strides[1] + ….
 */
export interface DropoutSpec {
  /** Probability that an element is set to 0, in [0, 1). */
  readonly probability: number;
  readonly seed: number;
  readonly stream: number;
  readonly offset: number;
  readonly strides: Shape;
}

/** Outputs of crossEntropy for each row. */
export interface CrossEntropyRows {
  readonly loss: Tensor;
  readonly lse: Tensor;
  readonly counted: Tensor;
}
/** Tensors of the forward that crossEntropyBackward needs. */
export interface CrossEntropySaved {
  readonly x: Tensor;
  readonly target: Tensor;
  readonly lse: Tensor;
}
/**
 * Label smoothing (Szegedy et al. 2016): the target distribution is 1 − smoothing at the target class, plus smoothing /
 * C at every class.
 */
export interface CrossEntropySpec {
  readonly smoothing: number;
  /** Rows with this target are ignored. */
  readonly ignored: number;
}

/**
 * `first` and `second` are, for adamW, the running means of g and g²; for scheduleFree, z and the running mean of g²,
 * where the parameter is y.
 */
export interface AdamState {
  readonly parameter: Tensor;
  readonly first: Tensor;
  readonly second: Tensor;
}
/**
 * With g the gradient, v = second ← β₂ v + (1 − β₂) g² and n = √(v / correction2) + ε:
 *
 * adamW (Loshchilov and Hutter 2019): p ← (1 − rate · decay) p; m = first ← m + (1 − β₁)(g − m);
 * p ← p − rate / correction1 · m / n. For β₁ < ½ the mean is computed as g + β₁ (m − g), in which a small g is not lost.
 *
 * scheduleFree (Defazio et al. 2024): u = g / n + decay · y; y ← y + mix (z − y) + rate (β₁ (1 − mix) − 1) u; z ← z −
 * rate · u.
 */
export interface AdamStep {
  readonly kind: AdamKind;
  readonly rate: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly epsilon: number;
  readonly decay: number;
  /** 1 − β₁ᵗ; not used by scheduleFree. */
  readonly correction1: number;
  /** 1 − β₂ᵗ. */
  readonly correction2: number;
  /** Weight of z in the running average x; not used by adamW. */
  readonly mix: number;
}

// Types of the entries of the kernel schema.

/**
 * Access of a kernel to an operand's elements: it reads them, writes all of them without reading, or reads and writes
 * them.
 */
export type Access = "read" | "write" | "update";

/** An optional part of the contract; see `kernelFeatures`. */
export type KernelFeature = (typeof kernelFeatures)[number];

/** A tensor. */
export interface TensorField {
  readonly name: string;
  readonly tensor: Access;
  /** For a tensor with access "write": the boolean parameter that changes the access to "update". */
  readonly updatedIf?: string;
  /**
   * Lengths of the axes by letter, with ".." for any leading axes: "[..,M,K]". Absent: the operand is the output or
   * broadcasts to it.
   */
  readonly shape?: string;
  /** The only dtype allowed. Absent: any. */
  readonly dtype?: DType;
  /** May be null, or absent if the interface of its structure allows it. */
  readonly optional?: true;
  readonly feature?: KernelFeature;
}

/** A number or a boolean, with its type in native code. */
export interface ScalarField {
  readonly name: string;
  readonly scalar: "boolean" | "float32" | "float64" | "int64" | "uint64";
  /** Names of the field in TypeScript, by the structure's `kind`, if they differ. */
  readonly names?: Readonly<Record<string, string>>;
  /** May be absent, which means 0. */
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

/** A list of spans, of slices, of slices for each sample of the batch, or of strides in elements. */
export interface ListField {
  readonly name: string;
  readonly list: "spans" | "slices" | "slicesBySample" | "strides";
  /** May be absent, which means empty. */
  readonly optional?: true;
  readonly feature?: KernelFeature;
}

/** A structure: several fields with one name. */
export interface StructField {
  readonly name: string;
  readonly struct: keyof typeof kernelStructures;
  /** "read" overrides the access that the structure's fields declare: its tensors are only read. */
  readonly access?: "read";
  /** May be null or absent. */
  readonly optional?: true;
  readonly feature?: KernelFeature;
}

/** A parameter of a kernel, or a field of a structure. */
export type Field = TensorField | ScalarField | EnumField | ListField | StructField;
