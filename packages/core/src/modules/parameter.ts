import type { Context } from "../context.ts";
import { checkDistribution, empty } from "../creation.ts";
import type { DType } from "../dtype.ts";
import { checkOptionNames } from "../options.ts";
import { keep } from "../scope.ts";
import type { Shape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";

/** What a parameter holds at first. */
export type Initial =
  | { readonly kind: "uniform"; readonly low: number; readonly high: number }
  | { readonly kind: "normal"; readonly mean: number; readonly std: number }
  | { readonly kind: "constant"; readonly value: number };

/** What `createParameter` takes beside its shape. */
export interface ParameterOptions {
  readonly initial: Initial;
  readonly dtype?: DType;
}

/**
 * A new parameter, equal on all ranks. No scope releases it. Its values follow from the context's seed and the order of creation alone, not
 * from the mesh, so that training can be compared across meshes; rank 0's are broadcast, in case devices round apart.
 * Collective.
 *
 * @throws OptionError, before anything is sent, for a distribution that does not exist, such as one of negative std.
 */
export function createParameter(ctx: Context, shape: Shape, options: ParameterOptions): Tensor {
  checkOptionNames("createParameter", options, ["initial", "dtype"] satisfies (keyof ParameterOptions)[]);
  const { initial, dtype = "float32" } = options;
  if (initial.kind !== "constant") checkDistribution("createParameter", initial);
  const parameter = keep(empty(ctx, shape, dtype));
  const { kernels } = ctx.device;
  if (initial.kind === "constant") kernels.fill(parameter, initial.value);
  else kernels.random(parameter, { ...initial, seed: ctx.seed, stream: ctx.nextRandomStream() });
  if (ctx.size > 1) ctx.world.broadcast(parameter, 0, { label: "parameters" }).wait();
  parameter.requiresGrad = true;
  return parameter;
}
