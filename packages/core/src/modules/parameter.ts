import { checkContext } from "../arguments.ts";
import type { Context } from "../context.ts";
import { checkDistribution, empty } from "../creation.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { keep } from "../scope.ts";
import type { Shape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";

/** What a parameter holds at first. */
export type Initial =
  | { readonly kind: "uniform"; readonly low: number; readonly high: number }
  | { readonly kind: "normal"; readonly mean: number; readonly std: number }
  | { readonly kind: "constant"; readonly value: number };

export const parameterOptions = defineOptions("createParameter", {
  /** What it holds at first. */
  initial: option.custom("{ kind, … } of kind uniform, normal or constant, with numbers", isInitial),
  /** Of the parameter. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** What `createParameter` takes beside its shape. */
export type ParameterOptions = OptionsOf<typeof parameterOptions>;

function isInitial(value: unknown): value is Initial {
  const { kind, ...numbers } = (value ?? {}) as Readonly<Record<string, unknown>>;
  const names = { uniform: ["low", "high"], normal: ["mean", "std"], constant: ["value"] }[String(kind)];
  return names !== undefined && names.every((name) => typeof numbers[name] === "number");
}

/**
 * A new parameter, equal on all ranks. No scope releases it. Its values follow from the context's seed and the order of creation alone, not
 * from the mesh, so that training can be compared across meshes; rank 0's are broadcast, in case devices round apart.
 * Collective.
 *
 * @throws OptionError, before anything is sent, for a distribution that does not exist, such as one of negative std.
 */
export function createParameter(ctx: Context, shape: Shape, options: ParameterOptions): Tensor {
  checkContext("createParameter", ctx);
  const { initial, dtype } = parameterOptions.parse(options);
  if (initial.kind !== "constant") checkDistribution("createParameter", initial);
  const parameter = keep(empty(ctx, shape, dtype));
  const { kernels } = ctx.device;
  if (initial.kind === "constant") kernels.fill(parameter, initial.value);
  else kernels.random(parameter, { ...initial, seed: ctx.seed, stream: ctx.nextRandomStream() });
  if (ctx.size > 1) ctx.world.broadcast(parameter, 0, { label: "parameters" }).wait();
  parameter.requiresGrad = true;
  if (ctx.size > 1) parameter.replication = { ranks: ctx.size, hasLocalGrad: false };
  return parameter;
}
