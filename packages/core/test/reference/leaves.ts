import { fromArray } from "../../src/creation.ts";
import type { Shape } from "../../src/shape.ts";
import type { Tensor } from "../../src/tensor.ts";
import type { ReferenceDevice } from "./device.ts";

/** Creates a leaf that requires a gradient. The default shape has one axis. */
export function createLeaf(device: ReferenceDevice, values: readonly number[], shape: Shape = [values.length]): Tensor {
  const x = fromArray(device, values, shape);
  x.requiresGrad = true;
  return x;
}

/** Reads the gradient of a leaf. */
export const readGrad = async (x: Tensor): Promise<number[]> => [...(await x.grad!.read())];
