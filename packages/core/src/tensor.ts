import { backward } from "./autograd/backward.ts";
import { type Edge, GradNode, isGradEnabled, type BackwardDefinition } from "./autograd/node.ts";
import { type Device, formatDevice } from "./device.ts";
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
import { inspectAsString } from "./inspect.ts";
import { readAfterChecks } from "./pending-checks.ts";
import type { Sharding } from "./placement/placement.ts";
import { checkViewBounds, formatShape, isContiguous, type Shape, numel, sameShape } from "./shape.ts";
import { releasedTensorOwner, type TensorTracker, trackTensor } from "./tracking.ts";

/** Storage and geometry of a tensor. Strides and offset are in elements. */
export interface TensorInit {
  readonly device: Device;
  readonly dtype: DType;
  readonly storage: Storage;
  readonly shape: Shape;
  readonly strides: Shape;
  readonly offset: number;
}

/** Replication state of a parameter. */
export interface Replication {
  /** Number of ranks that hold the parameter. */
  readonly ranks: number;
  /** Whether a backward has accumulated into the gradient since it was last reduced over the ranks or set. */
  hasLocalGrad: boolean;
  /** Whether the gradient was reduced over the ranks, and no backward has added to it since. */
  isGradReduced?: boolean;
  /** Number of ranks over which `reduceGradients` sums gradients, those of all sequence axes. Default 1. */
  readonly numSummedRanks?: number;
  /**
   * For a sharded parameter: the reducer that `reduceGradients` calls instead of an all-reduce, once for all parameters
   * that share it.
   */
  readonly reducer?: GradientReducer;
}

/** Reduces the gradients of a set of parameters, and holds the reduced gradients. */
export interface GradientReducer {
  /** Whether the ranks store only shards of the parameters, and gather them for each use. Default false. */
  readonly storesOnlyShards?: boolean;
  reduceGradients(): void;
  /** Disposes or clears the reduced gradients of those of its parameters that are listed. */
  zeroGrad(parameters: readonly Tensor[]): void;
}

/** Geometry of a view; see `Tensor.view`. */
export type ViewOptions = Partial<Pick<TensorInit, "shape" | "strides" | "offset">>;

/**
 * Brand of all tensors, shared by all copies of this package: a bundled program may contain one copy, and its device
 * use another.
 */
const tensorBrand: unique symbol = Symbol.for("@mosaic/core: Tensor") as never;

/** Returns whether a value is a tensor. */
export function isTensor(value: unknown): value is Tensor {
  return (
    typeof value === "object" && value !== null && (value as { readonly [tensorBrand]?: true })[tensorBrand] === true
  );
}

/**
 * A strided view of device memory. It is owned by the `scope` in which it was created, or otherwise by the caller, who
 * releases it by `using x = …` or `x[Symbol.dispose]()`. Memory is freed in stream order when all tensors that share it
 * are disposed. Views do not copy; `contiguous`, `to` and a `reshape` of non-contiguous elements may. Operations are
 * also methods, which methods.ts adds.
 *
 * @example
 * ```ts
 * import { fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = fromArray(device, [1, 2, 3, 4, 5, 6], [2, 3]);
 * using column = x.slice(1, 2); // a view of the last column
 * [column.shape, column.isContiguous]; // => [[2, 1], false]
 * Array.from(await column.read()); // => [3, 6]
 * ```
 */
export class Tensor implements Disposable, TensorInit {
  readonly device: Device;
  readonly dtype: DType;
  readonly storage: Storage;
  readonly shape: Shape;
  readonly strides: Shape;
  readonly offset: number;
  /** The tracker of the scope that releases the tensor when it ends; null if the caller must dispose it. */
  owner: TensorTracker | null = null;
  /**
   * Replication state of a parameter that several ranks hold, as created by `createParameter`; null for any other
   * tensor.
   */
  replication: Replication | null = null;
  /**
   * How axes of the tensor are sharded over the ranks, as far as known; null if unknown. `shard` and `attention` set it,
   * and operations that keep the rows of an axis pass it on. Calls with a placement throw if theirs differs. Set it to
   * null to use the rows under another placement.
   */
  sharding: Sharding | null = null;
  #requiresGrad = false;
  #grad: Tensor | null = null;
  #node: GradNode | undefined;
  #disposed = false;
  /** Computed at the first access and cached, because collectives read it at every call. */
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
   * Whether the tensor requires grad. Set it on leaves (parameters, inputs); results of operations on them also require
   * grad.
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
   * The accumulated gradient of a leaf, with its shape and its dtype or float32. A backward adds to an existing gradient
   * in place; one whose elements share memory, such as an expanded tensor, is replaced and disposed. The caller must
   * dispose it, because no scope releases it.
   *
   * @throws ShapeError or DTypeError if it is set to a gradient with another shape or dtype.
   */
  get grad(): Tensor | null {
    return this.#grad;
  }

  set grad(gradient: Tensor | null) {
    if (gradient !== null) {
      this.#checkGradient(gradient);
      gradient.owner = null;
    }
    if (this.replication) this.replication.hasLocalGrad = this.replication.isGradReduced = false;
    this.#grad = gradient;
  }

  /** Throws unless shape and dtype match, because optimizers access the gradient's memory by the parameter's shape. */
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

  /** Returns the destination of this tensor's gradient. */
  gradientEdge(): Edge {
    if (this.#node) return { node: this.#node };
    return this.requiresGrad ? { leaf: this } : null;
  }

  /**
   * Records the operation that created this tensor on the tape if any input requires grad or `isForced` is true;
   * otherwise frees the saved tensors. `defineOp`, which usually calls this, also checks that saved tensors are not
   * mutated before the backward.
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
   * Returns a view of the same memory, detached from autograd. Omitted fields default to those of this tensor.
   *
   * @throws ShapeError if the view exceeds this memory.
   */
  view(options: ViewOptions): Tensor {
    this.assertNotDisposed("view");
    const isViewOptions = typeof options === "object" && options !== null && !Array.isArray(options);
    const isShape = Array.isArray(options) || typeof options === "number";
    const remedy = isShape ? `use reshape(${Array.isArray(options) ? formatValue(options) : "[…]"})` : undefined;
    expectValue("view", isViewOptions, "{ shape, strides, offset }", options, remedy);
    const { shape = this.shape, strides = this.strides, offset = this.offset } = options;
    const { device, dtype, storage } = this;
    checkViewBounds({ shape, strides, offset }, storage.byteLength / dtypeBytes[dtype]);
    return new Tensor({ device, dtype, storage, shape, strides, offset });
  }

  /**
   * Makes this tensor refer to the memory of another tensor of the same shape and dtype, as PyTorch's
   * `tensor.data = other`, for example to move parameters into one buffer. Existing views of this tensor, and tensors
   * saved for a backward, keep their memory.
   *
   * @throws ShapeError if shape, dtype or device differ, or if one of the tensors is not contiguous.
   */
  setData(other: Tensor): void {
    this.assertNotDisposed("setData");
    expectValue("setData", isTensor(other), "a Tensor", other);
    other.assertNotDisposed("setData");
    const isCompatible =
      sameShape(other.shape, this.shape) && other.dtype === this.dtype && other.device === this.device;
    if (!isCompatible || !other.isContiguous || !this.isContiguous) {
      const describe = (x: Tensor): string =>
        `${formatShape(x.shape)} ${x.dtype} on ${formatDevice(x.device)}${x.isContiguous ? "" : ", not contiguous"}`;
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

  /** Returns a view of the same memory without gradient history. */
  detach(): Tensor {
    const out = this.view({});
    out.sharding = this.sharding;
    return out;
  }

  /**
   * Resolves to the values, row-major, as float32. A program waits for the device only here and in `synchronize`.
   * Rejects with the error of an operation that was enqueued before, such as a ParameterMismatchError.
   */
  read(): Promise<Float32Array> {
    this.assertNotDisposed("read");
    return readAfterChecks(this.device, this.device.read(this));
  }

  /** Resolves to the value of a tensor with one element. */
  async item(): Promise<number> {
    if (this.size !== 1) {
      throw new ShapeError({ where: "item", expected: "a tensor with one element", received: formatShape(this.shape) });
    }
    return (await this.read())[0]!;
  }

  /**
   * Runs the tape backward from this tensor and accumulates gradients into the leaves. `gradient` may be omitted for a
   * scalar.
   */
  backward(gradient?: Tensor): void {
    expectValue("backward: gradient", gradient === undefined || isTensor(gradient), "a Tensor", gradient);
    backward(this, gradient);
  }

  static {
    Object.defineProperty(this.prototype, tensorBrand, { value: true });
    inspectAsString(this.prototype);
  }

  /** Returns shape, dtype and device, as shown by `console.log`. Use `read` for the values. */
  toString(): string {
    const description = `Tensor ${formatShape(this.shape)} ${this.dtype} on ${formatDevice(this.device)}`;
    return this.#disposed ? `${description}, disposed` : description;
  }

  /**
   * Returns shape, dtype and device, such as "cuda:0", for JSON.stringify. Use `read` for the values, and `@mosaic/nn`
   * for checkpoints.
   */
  toJSON(): { readonly shape: Shape; readonly dtype: DType; readonly device: string } {
    return { shape: this.shape, dtype: this.dtype, device: formatDevice(this.device) };
  }

  /** Throws for JavaScript operators on tensors, because `x + y` would silently be a string, and `x / 2` NaN. */
  [Symbol.toPrimitive](hint: "string" | "number" | "default"): string {
    if (hint === "string") return this.toString();
    throw new MosaicError({
      where: "Tensor",
      expected: "a tensor operation, such as add(a, b), sub, mul, div, scale(x, 2) or neg",
      received: "a JavaScript operator on a tensor",
      remedy: "write x.add(y) instead of x + y; read values with await x.read() or await x.item()",
    });
  }

  /**
   * Disposes the tensor. Its memory is freed in stream order, unless other tensors or a collective in flight still use
   * it. Idempotent.
   */
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
