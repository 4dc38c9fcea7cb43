import type { Context } from "./context.ts";
import { formatDevice } from "./device.ts";
import { DTypeError, formatValue, MosaicError, OptionError, ShapeError } from "./errors.ts";
import { formatShape, type Shape } from "./shape.ts";
import { type DType, dtypeBytes } from "./storage.ts";
import { isTensor, type Tensor } from "./tensor.ts";

// Argument checks that public functions run before anything else, because callers may not use a type checker. Functions
// within the package do not check each other's arguments.

/**
 * Checks an argument that must be a tensor. `where` is the caller's name in errors.
 *
 * @example
 * ```ts
 * import { checkTensor, ones } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * checkTensor("myOp", ones(device, [2, 3]), 3); // throws myOp: expected a tensor with 3 axes, received [2,3]
 * ```
 * @throws OptionError unless x is a tensor; ShapeError unless it has `rank` axes; DisposedError if it was disposed.
 */
export function checkTensor(where: string, x: unknown, rank?: number): asserts x is Tensor {
  if (!isTensor(x)) throw argumentError(where, "a Tensor", x);
  if (x.isDisposed) x.assertNotDisposed(where);
  if (rank === undefined || x.rank === rank) return;
  throw new ShapeError({ where, expected: `a tensor with ${formatValue(rank)} axes`, received: formatShape(x.shape) });
}

/** As `checkTensor`, but also accepts null. */
export function checkNullableTensor(where: string, x: unknown): asserts x is Tensor | null {
  if (x !== null) checkTensor(where, x);
}

/** Returns the remedy for a value that was passed instead of a context, such as a promise or the second argument. */
export function contextRemedy(where: string, received: unknown): string {
  if (received instanceof Promise) return "await the promise: const ctx = await init(…)";
  const isFunctionName = /^\w+$/.test(where);
  if (!isFunctionName) return "pass the context that init() returned";
  const call = /^[A-Z]/.test(where) ? `new ${where}` : where;
  return `pass the context first, as in ${call}(ctx, …)`;
}

/**
 * Checks an argument that must be an open context. `where` is the caller's name in errors.
 *
 * @example
 * ```ts
 * import { checkContext } from "@mosaic/core";
 * checkContext("myOp", {}); // throws myOp: expected a Context from init(), received an empty object
 * ```
 * @throws OptionError unless `ctx` is a context; ClosedError if it was closed.
 */
export function checkContext(where: string, ctx: unknown): asserts ctx is Context {
  if (typeof (ctx as Partial<Context> | null | undefined)?.assertOpen !== "function") {
    throw argumentError(where, "a Context from init()", ctx, contextRemedy(where, ctx));
  }
  (ctx as Context).assertOpen(where);
}

/**
 * Checks an argument that must be a shape. `where` is the caller's name in errors.
 *
 * @example
 * ```ts
 * import { checkShape } from "@mosaic/core";
 * checkShape("myOp", [2, -1]); // throws myOp: expected an array of integers ≥ 0, received [2,-1]
 * ```
 * @throws ShapeError unless all lengths are integers ≥ 0.
 */
export function checkShape(where: string, shape: unknown): asserts shape is Shape {
  if (Array.isArray(shape) && isLengthList(shape)) return;
  const remedy = typeof shape === "number" ? { remedy: "pass the shape as one array, such as [2, 3]" } : {};
  throw new ShapeError({ where, expected: "an array of integers ≥ 0", received: formatValue(shape), ...remedy });
}

function isLengthList(shape: readonly unknown[]): boolean {
  for (let axis = 0; axis < shape.length; axis++) {
    if (!Number.isSafeInteger(shape[axis]) || (shape[axis] as number) < 0) return false;
  }
  return true;
}

/**
 * Checks an argument that must be a dtype. `where` is the caller's name in errors.
 *
 * @example
 * ```ts
 * import { checkDType } from "@mosaic/core";
 * checkDType("myOp", "int8"); // throws myOp: expected one of float32, bfloat16, float16, received int8
 * ```
 * @throws DTypeError unless `dtype` is the name of a dtype.
 */
export function checkDType(where: string, dtype: unknown): asserts dtype is DType {
  if (dtype === "float32" || dtype === "bfloat16" || dtype === "float16") return;
  throw new DTypeError({
    where,
    expected: `one of ${Object.keys(dtypeBytes).join(", ")}`,
    received: typeof dtype === "string" ? dtype : formatValue(dtype),
  });
}

/** Throws an OptionError unless `value` is a number. NaN and infinities are numbers. */
export function checkNumber(where: string, value: unknown): asserts value is number {
  if (typeof value !== "number") throw argumentError(where, "a number", value);
}

// oxlint-disable-next-line max-params -- the parts of one message
function argumentError(where: string, expected: string, received: unknown, remedy?: string): OptionError {
  return new OptionError({ where, expected, received: formatValue(received), ...(remedy !== undefined && { remedy }) });
}

/**
 * Throws unless all operands are on one device and have one dtype. Conversion is left to the caller because it costs
 * time and memory.
 */
export function checkOperands(where: string, reference: Tensor, ...operands: readonly Tensor[]): void {
  if (typeof reference === "number" && (where === "add" || where === "mul"))
    throw argumentError(where, "a Tensor first", reference, `write ${where}(x, ${String(reference)})`);
  checkTensor(where, reference);
  for (const operand of operands) {
    checkTensor(where, operand);
    checkDevice(where, reference, operand);
    if (operand.dtype === reference.dtype) continue;
    throw new DTypeError({
      where,
      expected: `operands of the same dtype, ${reference.dtype}`,
      received: operand.dtype,
      remedy: "convert one operand with to(dtype)",
    });
  }
}

/**
 * Throws a MosaicError unless both operands are on one device.
 *
 * @example
 * ```ts
 * import { checkDevice, ones } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu({ threads: 1 });
 * using otherDevice = cpu({ threads: 1, index: 1 });
 * using x = ones(device, [2]);
 * using y = ones(otherDevice, [2]);
 * checkDevice("add", x, y); // throws add: expected operands on the same device, cpu:0, received an operand on cpu:1
 * ```
 * @throws OptionError if an operand is not a tensor.
 */
export function checkDevice(where: string, reference: Tensor, operand: Tensor): void {
  if (operand?.device === reference?.device && isTensor(reference)) return;
  for (const x of [reference, operand]) checkTensor(where, x);
  const [expectedName, receivedName] = [reference, operand].map(({ device }) => formatDevice(device));
  // Each context opens its device, so two devices may have the same name.
  const isOtherContext = expectedName === receivedName;
  throw new MosaicError({
    where,
    expected: `operands on the same device, ${expectedName}`,
    received: `an operand on ${isOtherContext ? `another ${receivedName}, of another context` : receivedName}`,
    remedy: `create both operands ${isOtherContext ? "with the same context" : "on the same device"}`,
  });
}
