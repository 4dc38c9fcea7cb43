import type { ReduceKind, Tensor } from "@mosaic/core";

/** out ← x reduced over every axis on which out has length 1; a copy if x has, too. */
export function reduceInto(kind: ReduceKind, out: Tensor, x: Tensor): void {
  if (out.size === x.size) x.device.kernels.copy(out, x);
  else x.device.kernels.reduce(kind, out, x);
}
