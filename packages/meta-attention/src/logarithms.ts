import type { Tensor } from "@mosaic/core";

// Logarithms of sums of exponentials, as attention leaves them: −Infinity where a row saw nothing.

/** Below the lse of any row that saw something; subtracted in place of −Infinity, from which only NaN would come. */
const NOTHING = -1e30;

/** into ← ln(e^into + e^from). */
export function addLse(into: Tensor, from: Tensor): void {
  const { kernels } = into.device;
  using most = into.device.empty(into.shape, "float32");
  using other = into.device.empty(into.shape, "float32");
  kernels.binary("max", most, into, from);
  kernels.scalar("max", most, most, NOTHING);
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
  kernels.scalar("max", share, whole, NOTHING);
  kernels.binary("sub", share, part, share);
  kernels.unary("exp", share, share);
  return share;
}
