import type { Tensor } from "@mosaic/core";

// Arithmetic with logarithms: of sums of exponentials, as attention leaves them, and of shares. The logarithm of nothing is
// −Infinity, and no number stands for it: whatever is finite is a logarithm of something.

/**
 * The least finite float32. −∞ − (−∞) is NaN; subtracting at least this leaves every finite logarithm what it is, and −∞ what
 * it is.
 */
export const LOWEST: number = -(2 - 2 ** -23) * 2 ** 127;

/** into ← ln(e^into + e^from). */
export function addLse(into: Tensor, from: Tensor): void {
  const { kernels } = into.device;
  using most = into.device.empty(into.shape, "float32");
  using other = into.device.empty(into.shape, "float32");
  kernels.binary("max", most, into, from);
  kernels.scalar("max", most, most, LOWEST);
  kernels.binary("sub", other, from, most);
  kernels.unary("exp", other, other);
  kernels.binary("sub", into, into, most);
  kernels.unary("exp", into, into);
  kernels.binary("add", into, into, other);
  kernels.unary("log", into, into);
  kernels.binary("add", into, into, most);
}

/** e^(part − whole): the share of a softmax that lies on some of its keys; 0 where the row saw nothing. */
export function shareOf(part: Tensor, whole: Tensor): Tensor {
  const { kernels } = part.device;
  const share = part.device.empty(part.shape, "float32");
  kernels.scalar("max", share, whole, LOWEST);
  kernels.binary("sub", share, part, share);
  kernels.unary("exp", share, share);
  return share;
}

/** x ← min(x, −negativeLimit), with broadcasting: the smaller of two is minus the larger of their negatives. */
export function limitTo(x: Tensor, negativeLimit: Tensor | number): void {
  const { kernels } = x.device;
  kernels.scalar("mul", x, x, -1);
  if (typeof negativeLimit === "number") kernels.scalar("max", x, x, negativeLimit);
  else kernels.binary("max", x, x, negativeLimit);
  kernels.scalar("mul", x, x, -1);
}
