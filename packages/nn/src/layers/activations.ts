import { gelu, Module, relu, sigmoid, silu, type Tensor, tanh, checkTensor } from "@mosaic/core";

/** Functions of one element that layers take by name. */
export type ActivationName = "gelu" | "relu" | "tanh" | "sigmoid" | "silu";

const named: Readonly<Record<ActivationName, (x: Tensor) => Tensor>> = { gelu, relu, tanh, sigmoid, silu };

/** Their names. */
export const activationNames = Object.keys(named) as readonly ActivationName[];

/** The function of that name. */
export function activationOf(name: ActivationName): (x: Tensor) => Tensor {
  return named[name];
}

/** x · Φ(x) with the exact Φ, as a layer: Hendrycks and Gimpel 2016, PyTorch's default. */
export class GELU extends Module {
  /** x [..] → the same shape. */
  forward(x: Tensor): Tensor {
    checkTensor("GELU", x);
    return x.gelu();
  }
}
