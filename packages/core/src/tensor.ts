import { inspect } from "node:util";
import { backward } from "./autograd/backward.ts";
import { type Edge, GradNode, isGradEnabled, type BackwardDefinition } from "./autograd/node.ts";
import type { Device } from "./device.ts";
import { type DType, dtypeBytes, type Storage } from "./storage.ts";
import {
  AutogradError,
  checkFunction,
  DisposedError,
  DTypeError,
  expectValue,
  formatValue,
  MosaicError,
  ShapeError,
} from "./errors.ts";
import { checkViewBounds, formatShape, isContiguous, type Shape, numel, sameShape } from "./shape.ts";
import { releasedTensorOwner, type TensorTracker, trackTensor } from "./tracking.ts";

/** What a tensor shows of its storage. Strides and offset count elements. */
export interface TensorInit {
  readonly device: Device;
  readonly dtype: DType;
  readonly storage: Storage;
  readonly shape: Shape;
  readonly strides: Shape;
  readonly offset: number;
}

/** What is known of a parameter's replicas. */
export interface Replication {
  /** How many ranks hold it. */
  readonly ranks: number;
  /** Whether a backward has added to its gradient since that was reduced over the ranks, or set. */
  hasLocalGrad: boolean;
  /** Of a parameter that is sharded: what `reduceGradients` calls in place of an all-reduce, once for all parameters that have it. */
  readonly reducer?: GradientReducer;
}

/** Reduces the gradients of the parameters that it belongs to, and holds what it has reduced. */
export interface GradientReducer {
  reduceGradients(): void;
  /** Disposes what it has reduced. */
  zeroGrad(): void;
}

/** A part of what a tensor shows; see `Tensor.view`. */
export type ViewOptions = Partial<Pick<TensorInit, "shape" | "strides" | "offset">>;

/**
 * What every tensor has, whichever copy of this package made it: a program that is bundled may hold one, and its device another.
 */
const tensorBrand: unique symbol = Symbol.for("@mosaic/core: Tensor") as never;

/** Whether a value is a tensor. */
export function isTensor(value: unknown): value is Tensor {
  return (
    typeof value === "object" && value !== null && (value as { readonly [tensorBrand]?: true })[tensorBrand] === true
  );
}

/**
 * A strided view of device memory. It belongs to the `scope` that it was created in, or else to the caller that received it:
 * `using x = …` or `x[Symbol.dispose]()` gives its memory back in stream order; views share memory and count on their own.
 * Views never copy; `contiguous`, `to` and a `reshape` of elements that are not dense do. Operations are methods, too:
 * methods.ts adds them.
 */
export class Tensor implements Disposable, TensorInit {
  readonly device: Device;
  readonly dtype: DType;
  readonly storage: Storage;
  readonly shape: Shape;
  readonly strides: Shape;
  readonly offset: number;
  /** The tracker of the scope that releases it when it ends; null: the caller disposes it. */
  owner: TensorTracker | null = null;
  /** Of a parameter that several ranks hold alike, as `createParameter` makes them; null for any other tensor. */
  replication: Replication | null = null;
  #requiresGrad = false;
  #grad: Tensor | null = null;
  #node: GradNode | undefined;
  #disposed = false;
  /** Computed when it is first read; collectives read it at every call. */
  #isContiguous: boolean | undefined;

  constructor(init: TensorInit) {
    expectValue("Tensor", typeof init?.storage?.retain === "function", "a TensorInit with a storage", init);
    this.device = init.device;
    this.dtype = init.dtype;
    this.storage = init.storage;
    this.shape = init.shape;
    this.strides = init.strides;
    this.offset = init.offset;
    this.storage.retain();
    trackTensor(this);
  }

  /** Number of axes. */
  get rank(): number {
    return this.shape.length;
  }

  /** Number of elements. */
  get size(): number {
    return numel(this.shape);
  }

  get isContiguous(): boolean {
    return (this.#isContiguous ??= isContiguous(this.shape, this.strides));
  }

  get isDisposed(): boolean {
    return this.#disposed;
  }

  /**
   * Set on leaves (parameters, inputs) that require grad; results of operations on them require it, too.
   *
   * @throws AutogradError if it is set to false on the result of an operation, which would still be recorded.
   */
  get requiresGrad(): boolean {
    return this.#requiresGrad;
  }

  set requiresGrad(isRequired: boolean) {
    if (!isRequired && this.#node) {
      throw new AutogradError({
        where: "requiresGrad",
        expected: "a leaf, to be set to false",
        received: `the result of ${this.#node.name}`,
        remedy: "use x.detach() for a view that requires no gradient",
      });
    }
    this.#requiresGrad = isRequired;
  }

  /**
   * The accumulated gradient of a leaf, of its shape and dtype, or float32. The caller disposes it: no scope releases it.
   *
   * @throws ShapeError or DTypeError if it is set to a gradient of another shape or dtype.
   */
  get grad(): Tensor | null {
    return this.#grad;
  }

  set grad(gradient: Tensor | null) {
    if (gradient !== null) {
      this.#checkGradient(gradient);
      gradient.owner = null;
    }
    if (this.replication) this.replication.hasLocalGrad = false;
    this.#grad = gradient;
  }

  /** Optimizers read and write memory by the parameter's shape. */
  #checkGradient(gradient: Tensor): void {
    const where = "grad";
    expectValue(where, isTensor(gradient), "a tensor or null", gradient);
    if (!sameShape(gradient.shape, this.shape)) {
      const [expected, received] = [`a gradient of shape ${formatShape(this.shape)}`, formatShape(gradient.shape)];
      throw new ShapeError({ where, expected, received });
    }
    if (gradient.dtype === this.dtype || gradient.dtype === "float32") return;
    throw new DTypeError({ where, expected: `a gradient of ${this.dtype}`, received: gradient.dtype });
  }

  /** The operation that created this tensor, if it requires grad. */
  get node(): GradNode | undefined {
    return this.#node;
  }

  /** Throws a DisposedError that names `where` if the tensor was disposed. */
  assertNotDisposed(where: string): void {
    if (!this.#disposed) return;
    const isReleasedByScope = this.owner === releasedTensorOwner;
    const shape = formatShape(this.shape);
    throw new DisposedError({
      where,
      expected: "a tensor that is not disposed",
      received: isReleasedByScope
        ? `a tensor of shape ${shape} released by its scope`
        : `a disposed tensor of shape ${shape}`,
      remedy: isReleasedByScope
        ? "return the tensor from the scope, or call keep(x)"
        : "dispose a tensor after its last use",
    });
  }

  /** Where this tensor's gradient goes. */
  gradientEdge(): Edge {
    if (this.#node) return { node: this.#node };
    return this.requiresGrad ? { leaf: this } : null;
  }

  /**
   * Puts the operation that made this tensor on the tape, if some input needs a gradient or `force` is true; frees what was
   * saved otherwise. That what was saved was not mutated meanwhile is checked by `defineOp`, the usual way to get here.
   */
  record(inputs: readonly (Tensor | null)[], definition: BackwardDefinition, isForced = false): this {
    expectValue(
      "record",
      Array.isArray(inputs) && inputs.every((x) => x === null || isTensor(x)),
      "an array, each element a tensor or null",
      inputs,
    );
    checkFunction("record: backward", definition?.backward);
    checkFunction("record: free", definition?.free);
    const edges = isGradEnabled() ? inputs.map((input) => input?.gradientEdge() ?? null) : [];
    if (!isForced && !edges.some((edge) => edge !== null)) {
      definition.free();
      return this;
    }
    this.requiresGrad = true;
    this.#node = new GradNode(definition, edges, { shape: this.shape, dtype: this.dtype });
    this.#node.retain();
    return this;
  }

  /**
   * A view of the same memory, detached from autograd. Omitted fields default to those of this tensor.
   *
   * @throws ShapeError if it would show what lies outside of that memory.
   */
  view(options: ViewOptions): Tensor {
    this.assertNotDisposed("view");
    const isViewOptions = typeof options === "object" && options !== null && !Array.isArray(options);
    const remedy = Array.isArray(options) ? `use reshape(${formatValue(options)})` : undefined;
    expectValue("view", isViewOptions, "{ shape, strides, offset }", options, remedy);
    const { shape = this.shape, strides = this.strides, offset = this.offset } = options;
    const { device, dtype, storage } = this;
    checkViewBounds({ shape, strides, offset }, storage.byteLength / dtypeBytes[dtype]);
    return new Tensor({ device, dtype, storage, shape, strides, offset });
  }

  /**
   * Shows the memory of another tensor of this shape and dtype from now on, as PyTorch's `tensor.data = other`: what makes parameters parts of
   * one buffer. Views of this tensor, and what a backward has saved of it, stay with the memory that they show.
   *
   * @throws ShapeError for another shape, dtype or device, or one that is not contiguous.
   */
  setData(other: Tensor): void {
    this.assertNotDisposed("setData");
    expectValue("setData", isTensor(other), "a Tensor", other);
    other.assertNotDisposed("setData");
    const isCompatible =
      sameShape(other.shape, this.shape) && other.dtype === this.dtype && other.device === this.device;
    if (!isCompatible || !other.isContiguous || !this.isContiguous) {
      const describe = (x: Tensor): string =>
        `${formatShape(x.shape)} ${x.dtype} on ${x.device.type}:${x.device.index}${x.isContiguous ? "" : ", not contiguous"}`;
      throw new ShapeError({
        where: "setData",
        expected: "contiguous tensors of the same shape and dtype on the same device",
        received: `${describe(this)} and ${describe(other)}`,
      });
    }
    other.storage.retain();
    this.storage.release();
    const mutableThis = this as { -readonly [Name in "storage" | "strides" | "offset"]: Tensor[Name] };
    mutableThis.storage = other.storage;
    mutableThis.strides = other.strides;
    mutableThis.offset = other.offset;
  }

  /** The same memory without history. */
  detach(): Tensor {
    return this.view({});
  }

  /** The values, row-major, as float32: together with `synchronize` the only place where a program waits. */
  read(): Promise<Float32Array> {
    this.assertNotDisposed("read");
    return this.device.read(this);
  }

  /** The value of a tensor of one element. */
  async item(): Promise<number> {
    if (this.size !== 1) {
      throw new ShapeError({ where: "item", expected: "a tensor with one element", received: formatShape(this.shape) });
    }
    return (await this.read())[0]!;
  }

  /** Runs the tape backward from here and adds gradients to the leaves. `gradient` may be left out for a scalar. */
  backward(gradient?: Tensor): void {
    expectValue("backward: gradient", gradient === undefined || isTensor(gradient), "a Tensor", gradient);
    backward(this, gradient);
  }

  static {
    Object.defineProperty(this.prototype, tensorBrand, { value: true });
    // `console.log` must not print the device behind it.
    Object.defineProperty(this.prototype, inspect.custom, { value: this.prototype.toString });
  }

  /** Shape, dtype and device, as `console.log` shows them; values need `read`. */
  toString(): string {
    const description = `Tensor ${formatShape(this.shape)} ${this.dtype} on ${this.device.type}:${this.device.index}`;
    return this.#disposed ? `${description}, disposed` : description;
  }

  /** What JSON.stringify writes: shape, dtype and device, such as "cuda:0". Values need `read`; checkpoints, `@mosaic/nn`. */
  toJSON(): { readonly shape: Shape; readonly dtype: DType; readonly device: string } {
    return { shape: this.shape, dtype: this.dtype, device: `${this.device.type}:${this.device.index}` };
  }

  /** JavaScript has no operators for tensors: \`x + y\` would be text, and \`x / 2\` NaN, in silence. */
  [Symbol.toPrimitive](hint: "string" | "number" | "default"): string {
    if (hint === "string") return this.toString();
    throw new MosaicError({
      where: "Tensor",
      expected: "a tensor operation, such as add(a, b), sub, mul, div, scale(x, 2) or neg",
      received: "a JavaScript operator on a tensor",
      remedy: "write x.add(y) instead of x + y; read values with await x.read() or await x.item()",
    });
  }

  /** Gives the memory back in stream order, unless other tensors or a collective under way still use it. Idempotent. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.storage.release();
    this.#node?.release();
    this.#node = undefined;
  }
}
