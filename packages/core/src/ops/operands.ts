import { checkTensor } from "../arguments.ts";
import { DTypeError, MosaicError, OptionError } from "../errors.ts";
import type { Tensor } from "../tensor.ts";

/** All operands live on one device and have one dtype; converting is left to the caller, as it costs time and memory. */
export function checkOperands(where: string, first: Tensor, ...others: readonly Tensor[]): void {
  if (typeof first === "number" && (where === "add" || where === "mul")) throw numberRefused(where, first);
  checkTensor(where, first);
  for (const other of others) {
    if (typeof other === "number") throw numberRefused(where, other);
    checkTensor(where, other);
    checkDevice(where, first, other);
    if (other.dtype === first.dtype) continue;
    throw new DTypeError({
      where,
      expected: `one dtype, ${first.dtype}`,
      received: other.dtype,
      remedy: "convert one operand with to(dtype)",
    });
  }
}

/** What takes a number where another operation takes a tensor. */
const withNumber: Readonly<Record<string, (value: number) => string>> = {
  mul: (value) => `scale(x, ${value}) multiplies by a number`,
  div: (value) => `scale(x, 1 / ${value}) divides by a number`,
  add: (value) => `add(x, full(ctx, [], ${value})) adds a number`,
  sub: (value) => `sub(x, full(ctx, [], ${value})) subtracts a number`,
};

function numberRefused(where: string, value: number): OptionError {
  const remedy = withNumber[where]?.(value);
  return new OptionError({
    where,
    expected: "a Tensor",
    received: String(value),
    ...(remedy !== undefined && { remedy }),
  });
}

/** All operands live on one device. */
export function checkDevice(where: string, first: Tensor, other: Tensor): void {
  if (other.device === first.device) return;
  throw new MosaicError({
    where,
    expected: `operands on one device, ${first.device.type}:${first.device.index}`,
    received: `one on another, ${other.device.type}:${other.device.index}`,
    remedy: "create both on the same device or context",
  });
}
