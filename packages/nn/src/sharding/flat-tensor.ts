import type { Tensor } from "@mosaic/core";

/** Elements from `offset` on become those of a tensor. */
export function copyInto(flatTensor: Tensor, x: Tensor, offset: number): void {
  using targetRange = flatTensor.slice(0, offset, offset + x.size);
  using target = targetRange.reshape(x.shape);
  if (x.size > 0) x.device.kernels.copy(target, x);
}

/** A parameter shows its place in a flat tensor, which has its values. */
export function moveInto(flatTensor: Tensor, parameter: Tensor, offset: number): void {
  copyInto(flatTensor, parameter, offset);
  using flatRange = flatTensor.slice(0, offset, offset + parameter.size);
  using target = flatRange.reshape(parameter.shape);
  parameter.setData(target);
}
