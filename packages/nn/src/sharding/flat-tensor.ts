import type { Tensor } from "@mosaic/core";

/** Copies a tensor to the elements of a flat tensor from `offset` on. */
export function copyInto(flatTensor: Tensor, x: Tensor, offset: number): void {
  using targetRange = flatTensor.slice(0, offset, offset + x.size);
  using target = targetRange.reshape(x.shape);
  if (x.size > 0) x.device.kernels.copy(target, x);
}

/** Moves the values of a parameter into a flat tensor, and makes the parameter a view of it. */
export function moveInto(flatTensor: Tensor, parameter: Tensor, offset: number): void {
  copyInto(flatTensor, parameter, offset);
  using flatRange = flatTensor.slice(0, offset, offset + parameter.size);
  using target = flatRange.reshape(parameter.shape);
  parameter.setData(target);
}
