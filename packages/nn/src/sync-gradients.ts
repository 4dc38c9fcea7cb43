import { type Context, type Module, reduceGradients, zeros } from "@mosaic/core";

/**
 * Makes the gradients of a replicated model equal on all ranks and equal to one device's: their sum over every axis of the
 * mesh, but their mean over "dp" (core's `reduceGradients`). Call it between `backward` and the optimizer's step. A
 * parameter that received no gradient gets zeros, on one rank as on many, so that an optimizer treats it alike on any mesh;
 * one that requires none is left alone. Collective.
 *
 * @example
 * ```ts
 * import { init, randn, scope } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { MLP, syncGradients } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using mlp = new MLP(ctx, { embedDim: 4 });
 * using x = randn(ctx, [3, 4]);
 * using loss = scope(() => mlp.forward(x).sum());
 * loss.backward();
 * syncGradients(ctx, mlp);
 * Array.from(await mlp.fc2.bias!.grad!.read()); // => [3, 3, 3, 3]
 * ```
 */
export function syncGradients(ctx: Context, model: Module): void {
  for (const parameter of model.parameters()) {
    if (parameter.requiresGrad) parameter.grad ??= zeros(ctx, parameter.shape, parameter.dtype);
  }
  reduceGradients(ctx, model);
}
