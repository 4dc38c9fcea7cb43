import { checkpoint } from "../autograd/checkpoint.ts";
import type { Context } from "../context.ts";
import type { AxisSharding, Layout } from "../placement/placement.ts";
import { checkSharding } from "../placement/sharding.ts";
import { scope } from "../scope.ts";
import type { Tensor } from "../tensor.ts";
import { createSinks, type ResolvedOptions } from "./attention-options.ts";
import { Linear } from "./linear.ts";
import { Module } from "./module.ts";

/** Base class of self- and cross-attention: input projections, `out_proj`, head norms, and sinks. */
export abstract class AttentionModule extends Module {
  protected readonly ctx: Context;
  protected readonly settings: ResolvedOptions;
  readonly outProjection: Linear;
  /** [H], if the heads have sinks. */
  readonly sinks: Tensor | null;

  protected constructor(ctx: Context, settings: ResolvedOptions, inputProjections: Readonly<Record<string, Linear>>) {
    super();
    const { embedDim, numHeads, headDim, outBias, dtype, qNorm, kNorm } = settings;
    this.ctx = ctx;
    this.settings = settings;
    for (const [name, projection] of Object.entries(inputProjections)) this.addChild(name, projection);
    const heads = numHeads * headDim;
    this.outProjection = this.addChild("out_proj", new Linear(ctx, heads, embedDim, { bias: outBias, dtype }));
    if (qNorm) this.addChild("q_norm", qNorm);
    if (kNorm) this.addChild("k_norm", kNorm);
    this.sinks = createSinks(ctx, settings);
    if (this.sinks) this.addParameter("sinks", this.sinks);
  }
}

/** An input of a module, of which `axis` is to have a layout. `where` names the input in errors. */
interface ExpectedLayout {
  readonly where: string;
  readonly axis: number;
  readonly layout: Layout;
}

/** Throws if x is known to be sharded differently along `axis`, before anything is computed. Returns its sharding. */
export function checkInputSharding(ctx: Context, x: Tensor, { where, axis, layout }: ExpectedLayout): AxisSharding {
  const axisSharding = { axis: axis < 0 ? axis + x.rank : axis, layout, mesh: ctx.mesh.shape };
  checkSharding(`${where}, rank ${ctx.rank}`, x, axisSharding);
  return axisSharding;
}

/** Runs `computeAttention` on the inputs in a scope. With `useCheckpoint`, the backward recomputes it. */
export function attendInScope<Inputs extends readonly Tensor[]>(
  { useCheckpoint }: ResolvedOptions,
  computeAttention: (...inputs: Inputs) => Tensor,
  ...inputs: Inputs
): Tensor {
  const attendScoped = (...tensors: Inputs) => scope(() => computeAttention(...tensors));
  if (!useCheckpoint) return attendScoped(...inputs);
  return checkpoint({ keepAttention: useCheckpoint === "keepAttention" }, attendScoped, ...inputs);
}
