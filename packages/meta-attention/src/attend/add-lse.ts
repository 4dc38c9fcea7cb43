import type { Tensor } from "@mosaic/core";

/** into ← ln(e^into + e^from); finite numbers. */
export function addLse(into: Tensor, from: Tensor): void {
  const { kernels } = into.device;
  using most = into.device.empty(into.shape, "float32");
  using other = into.device.empty(into.shape, "float32");
  kernels.binary("max", most, into, from);
  kernels.binary("sub", other, from, most);
  kernels.unary("exp", other, other);
  kernels.binary("sub", into, into, most);
  kernels.unary("exp", into, into);
  kernels.binary("add", into, into, other);
  kernels.unary("log", into, into);
  kernels.binary("add", into, into, most);
}
