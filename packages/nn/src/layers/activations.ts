import { gelu, Module, OptionError, relu, sigmoid, type Tensor, tanh } from "@mosaic/core";

/** Functions of one element that layers take by name. */
export type ActivationName = "gelu" | "relu" | "tanh" | "sigmoid";

const named: Readonly<Record<ActivationName, (x: Tensor) => Tensor>> = { gelu, relu, tanh, sigmoid };

/** The function of that name, or an OptionError that lists the names. */
export function activationOf(where: string, name: ActivationName): (x: Tensor) => Tensor {
  if (Object.hasOwn(named, name)) return named[name];
  throw new OptionError({
    where,
    expected: `an activation among ${Object.keys(named).join(", ")}`,
    received: JSON.stringify(name),
  });
}

/** x · Φ(x) with the exact Φ, as a layer: Hendrycks and Gimpel 2016, PyTorch's default. */
export class GELU extends Module {
  /** x [..] → the same shape. */
  forward(x: Tensor): Tensor {
    return x.gelu();
  }
}
