import { checkContext } from "../arguments.ts";
import { divideReducedGradient } from "../autograd/backward.ts";
import type { Context } from "../context.ts";
import { empty, zeros } from "../creation.ts";
import { dataParallelSize } from "../data-parallel.ts";
import { checkFunction } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { checkDistribution } from "../random.ts";
import { keep } from "../scope.ts";
import type { Shape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { allReduceGradients } from "./gradient-buckets.ts";
import { checkModule, type Module } from "./module.ts";
import { compareReplicas } from "./replica-check.ts";

// Parameters are replicated: they are created equal on all ranks, and their gradients are reduced after each backward.

/** Initial values of a parameter. */
export type Initializer =
  | { readonly kind: "uniform"; readonly low: number; readonly high: number }
  | { readonly kind: "normal"; readonly mean: number; readonly std: number }
  | { readonly kind: "constant"; readonly value: number };

export const parameterOptions = defineOptions("createParameter", {
  /** Initial values. */
  initial: option.custom("{ kind, … } with kind uniform, normal or constant, and numeric values", isInitializer),
  /** The dtype of the parameter. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** Options of `createParameter`. */
export type ParameterOptions = OptionsOf<typeof parameterOptions>;

function isInitializer(value: unknown): value is Initializer {
  const { kind, ...numbers } = (value ?? {}) as Readonly<Record<string, unknown>>;
  const names = { uniform: ["low", "high"], normal: ["mean", "std"], constant: ["value"] }[String(kind)];
  return names !== undefined && names.every((name) => typeof numbers[name] === "number");
}

let isInitSkipped = false;

/**
 * Runs `construct` without initializing or broadcasting new parameters, for modules whose weights are loaded before
 * they are used. As PyTorch's `torch.nn.utils.skip_init`, but for all parameters of a model.
 *
 * @example
 * ```ts
 * import { init, Linear, skipInit } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using trained = new Linear(ctx, 4, 2);
 * using copy = skipInit(() => new Linear(ctx, 4, 2));
 * copy.loadStateDict(trained.stateDict()); // => { missing: [], unexpected: [] }
 * ```
 */
export function skipInit<T>(construct: () => T): T {
  checkFunction("skipInit", construct);
  const wasSkipped = isInitSkipped;
  isInitSkipped = true;
  try {
    return construct();
  } finally {
    isInitSkipped = wasSkipped;
  }
}

/**
 * Creates a parameter that is equal on all ranks. No scope releases it. Its values depend only on the context's seed
 * and the order of creation, not on the mesh, so that training can be compared across meshes. The values of rank 0 are
 * broadcast, because devices may round differently. Collective.
 *
 * @example
 * ```ts
 * import { createParameter, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using scale = createParameter(ctx, [4], { initial: { kind: "constant", value: 1 } });
 * scale.requiresGrad; // => true
 * Array.from(await scale.read()); // => [1, 1, 1, 1]
 * ```
 * @throws OptionError, before anything is sent, for an invalid distribution, for example with a negative std.
 */
export function createParameter(ctx: Context, shape: Shape, options: ParameterOptions): Tensor {
  checkContext("createParameter", ctx);
  const { initial, dtype } = parameterOptions.parse(options);
  if (initial.kind !== "constant") checkDistribution("createParameter", initial);
  const parameter = keep(empty(ctx, shape, { dtype }));
  if (!isInitSkipped) initialize(ctx, parameter, initial);
  parameter.requiresGrad = true;
  if (ctx.size > 1) {
    const numSummedRanks = ctx.size / dataParallelSize(ctx.mesh);
    parameter.replication = { ranks: ctx.size, hasLocalGrad: false, numSummedRanks };
  }
  return parameter;
}

function initialize(ctx: Context, parameter: Tensor, initial: Initializer): void {
  const { kernels } = ctx.device;
  if (initial.kind === "constant") kernels.fill(parameter, initial.value);
  else kernels.random(parameter, { ...initial, seed: ctx.seed, stream: ctx.nextRandomStream() });
  if (ctx.size > 1) ctx.world.broadcast(parameter, 0, { label: "parameters" }).wait();
}

/**
 * Reduces the gradients of replicated parameters over all ranks, so that they equal those of a single device: the sum
 * over every mesh axis except data-parallel ones ("dp", "dp_…"), along which ranks hold different samples and gradients
 * are averaged. Call it between `backward` and the optimizer's step. Collective. A gradient that was reduced before,
 * and was not zeroed or assigned since, counts once: gradients that are reduced after each of several backwards add up.
 * A parameter without a gradient is assigned zeros, also on a single rank, so that an optimizer treats it equally on
 * any mesh. A parameter that does not require grad (frozen) is unchanged. One all-reduce over all ranks sums up to 25
 * MiB of gradients, which are divided by the number of data-parallel ranks first, as by PyTorch's
 * DistributedDataParallel. Sums are float32, rounded once.
 *
 * Along sequence axes ("sp", …), each rank's loss is its shard's part of the sum, so gradients are summed. Along
 * data-parallel axes, a loss is the mean over the rank's own samples, so gradients are averaged, as in data-parallel
 * training. Sharded parameters (`fullyShard` of @mosaic/nn) have no `grad` afterwards: each rank holds its shard of the
 * gradients.
 *
 * The first call for a parameter, frozen or not, also compares it with that of the previous rank, which sends it. The
 * host does not wait for the result. If ranks differ, the next `read` of a tensor rejects with a ParameterMismatchError on
 * every rank, or otherwise `close`, and later calls for the module throw it. Parameters of which ranks store only shards
 * are not compared.
 *
 * @example
 * ```ts
 * import { init, Linear, randn, reduceGradients, scope } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using layer = new Linear(ctx, 4, 2);
 * using x = randn(ctx, [3, 4]);
 * using loss = scope(() => layer.forward(x).sum());
 * loss.backward();
 * reduceGradients(ctx, layer);
 * Array.from(await layer.bias!.grad!.read()); // => [3, 3]
 * ```
 * @throws DisposedError, before anything is sent, for a parameter of a module that was disposed. ParameterMismatchError
 * if an earlier call has found that parameters differ.
 */
export function reduceGradients(ctx: Context, module: Module): void {
  checkContext("reduceGradients", ctx);
  checkModule("reduceGradients", module);
  const namedParameters = module.namedParameters();
  const trainableParameters = namedParameters
    .map(([, parameter]) => parameter)
    .filter(({ requiresGrad }) => requiresGrad);
  for (const parameter of trainableParameters) parameter.assertNotDisposed("reduceGradients");
  compareReplicas(ctx, namedParameters);
  const reducers = new Set(trainableParameters.flatMap(({ replication }) => replication?.reducer ?? []));
  for (const reducer of reducers) reducer.reduceGradients();
  const parameters = trainableParameters.filter(({ replication }) => !replication?.reducer);
  for (const parameter of parameters) {
    if (!parameter.grad || parameter.grad.isDisposed)
      parameter.grad = zeros(ctx, parameter.shape, { dtype: parameter.dtype });
  }
  ctx.world.markStep();
  if (ctx.size === 1) return;
  for (const parameter of parameters) divideReducedGradient(parameter);
  allReduceGradients(ctx, parameters);
  for (const { replication } of parameters) {
    if (!replication) continue;
    replication.hasLocalGrad = false;
    replication.isGradReduced = true;
  }
}
