import { checkTensor } from "../arguments.ts";
import { DTypeError, MosaicError } from "../errors.ts";
import type { Tensor } from "../tensor.ts";

/** All operands live on one device and have one dtype; converting is left to the caller, as it costs time and memory. */
export function checkOperands(where: string, first: Tensor, ...others: readonly Tensor[]): void {
  checkTensor(where, first);
  for (const other of others) {
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
