import { defineOp } from "../autograd/define-op.ts";
import type { Context } from "../context.ts";
import type { Slice } from "../mask/slice.ts";
import { full } from "../mask/masks.ts";
import { resolveSlices } from "../mask/verify.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { layoutOf } from "../placement/layout-of.ts";
import type { Layout } from "../placement/layout.ts";
import type { Tensor } from "../tensor.ts";
import { denseRows } from "../views.ts";
import type { AttentionBackend, Call, PlacedKv } from "./backend.ts";
import { checkContext, checkTensor } from "../arguments.ts";
import { checkAttention } from "./check.ts";
import { backendOrLocal } from "./local.ts";
import { recordCall } from "./record-call.ts";
import type { AttentionState, QkvGrads } from "./state.ts";

// Shapes: B batch, H heads, Hkv key heads, Sq and Sk local queries and keys, D head size.

export const attentionOptions = defineOptions("attention", {
  /** A registered name or the backend itself; required where the mesh cuts sequences, by an axis other than "dp" of length > 1. Default: "local". */
  backend: option.either(option.string(), option.backend(), { optional: true }),
  /** Which keys each query sees, in global positions. Default: all. */
  mask: option.mask({ optional: true }),
  /** Factor on q·k. Default 1 / √D. */
  scale: option.number({ optional: true }),
  /** Where the queries lie. Default: all of them on this rank. */
  queries: option.layout({ optional: true }),
  /** Where the keys lie. Default: all of them on this rank. */
  keys: option.layout({ optional: true }),
  /** Whether `lse` is returned, too. Default false. */
  returnLse: option.boolean({ default: false }),
});
type AnyOptions = OptionsOf<typeof attentionOptions>;
/** What `attention` takes beside q, k and v. */
export type AttentionOptions = Omit<AnyOptions, "returnLse">;

/** What `attention` returns with `returnLse`. */
export interface AttentionOutput {
  /** [B,H,Sq,D] in q's dtype. */
  readonly out: Tensor;
  /** [B,H,Sq] float32: ln Σ exp(scale · q·k) over the keys that a query sees, −Infinity if it sees none. Not differentiable. */
  readonly lse: Tensor;
}

/** A state that has seen nothing: out 0 and lse −Infinity; add keys with a backend's or the kernels' `attend`. */
export function emptyState(q: Tensor): AttentionState {
  checkTensor("emptyState", q, 4);
  const out = headsLast(q, "float32");
  const lse = q.device.empty(q.shape.slice(0, -1), "float32");
  q.device.kernels.fill(out, 0);
  q.device.kernels.fill(lse, -Infinity);
  return { out, lse };
}

/** [B,H,S,D] kept in memory as [B,S,H,D], so that merging the heads is a view. */
function headsLast({ device, shape: [b, h, s, d] }: Tensor, dtype: Tensor["dtype"]): Tensor {
  using memory = device.empty([b!, s!, h!, d!], dtype);
  return memory.permute([0, 2, 1, 3]);
}

/** Rounds to a dtype once, into memory laid out the same way; takes x. */
function rounded(x: Tensor, dtype: Tensor["dtype"]): Tensor {
  if (x.dtype === dtype) return x;
  const out = headsLast(x, dtype);
  x.device.kernels.copy(out, x);
  x.dispose();
  return out;
}

interface Plan {
  readonly ctx: Context;
  readonly backend: AttentionBackend;
  readonly mask: readonly Slice[];
  readonly scale: number;
  readonly queries: Layout;
  readonly keys: Layout;
  /** Receives a handle of lse. */
  readonly returned?: { lse?: Tensor };
}

function callOf({ ctx, scale, mask, queries, keys }: Plan, q: Tensor): Call {
  return { q, at: ctx.mesh.coordinate, scale, mask, queries, keys };
}

function kvOf({ ctx }: Plan, k: Tensor, v: Tensor): PlacedKv {
  return { k, v, from: ctx.mesh.coordinate };
}

const attentionOp = defineOp({
  name: "attention",
  forward([q, k, v]: [Tensor, Tensor, Tensor], plan: Plan) {
    const state = emptyState(q);
    const call = callOf(plan, q);
    recordCall(plan.ctx, plan.backend, "forward", call, k);
    plan.backend.attend(plan.ctx, call, state, kvOf(plan, k, v));
    const output = rounded(state.out, q.dtype);
    if (plan.returned) plan.returned.lse = state.lse.detach();
    return { output, saved: { q, k, v, output, lse: state.lse, plan } };
  },
  backward({ q, k, v, output, lse, plan }, dOutput) {
    plan.ctx.assertOpen(`${plan.backend.name}: backward`);
    using dOut = denseRows(dOutput);
    using delta = q.device.empty(lse.shape, "float32");
    q.device.kernels.rowDot(delta, dOut, output);
    const grads: QkvGrads = { dq: accumulator(q), dk: accumulator(k), dv: accumulator(v) };
    const call = { ...callOf(plan, q), dOut, lse, delta };
    recordCall(plan.ctx, plan.backend, "backward", call, k);
    plan.backend.attendBackward(plan.ctx, call, grads, kvOf(plan, k, v));
    return [rounded(grads.dq, q.dtype), rounded(grads.dk, k.dtype), rounded(grads.dv, v.dtype)];
  },
});

function accumulator(like: Tensor): Tensor {
  const zeros = headsLast(like, "float32");
  like.device.kernels.fill(zeros, 0);
  return zeros;
}

/**
 * Attention softmax(scale · q kᵀ) v over every key that the mask shows, wherever in the mesh it lies; exact on any mesh.
 * q [B,H,Sq,D], k and v [B,Hkv,Sk,D], with H a multiple of Hkv: this rank's shards. Returns [B,H,Sq,D] in q's dtype, in
 * memory as [B,Sq,H,D]. A query that sees nothing gives 0. Differentiable in q, k and v; sums are float32 and rounded
 * once.
 *
 * With `returnLse`, `{ out, lse }`, as flash_attn's return_softmax_lse: two such results over disjoint keys can be merged.
 *
 * Collective along the backend's axes. The gradient of k and v counts every rank's queries, so a loss that is a sum over
 * shards needs no more than adding the shards' losses.
 *
 * @example
 * ```ts
 * import { attention, init, masks, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using q = randn(ctx, [1, 4, 10, 8]);
 * using k = randn(ctx, [1, 2, 10, 8]);
 * using v = randn(ctx, [1, 2, 10, 8]);
 * using out = attention(ctx, q, k, v, { mask: masks.causal() });
 * out.shape; // => [1, 4, 10, 8]
 * const { lse } = attention(ctx, q, k, v, { returnLse: true });
 * lse.shape; // => [1, 4, 10]
 * ```
 * @throws ShapeError, DTypeError or OptionError, on this rank and before anything is sent; also for a mask or a layout that
 * breaks its guarantees (`Mask`, `Placement`), which are verified once for each pair of lengths.
 */
export function attention(
  ctx: Context,
  q: Tensor,
  k: Tensor,
  v: Tensor,
  options: AttentionOptions & { readonly returnLse: true },
): AttentionOutput;
export function attention(
  ctx: Context,
  q: Tensor,
  k: Tensor,
  v: Tensor,
  options?: AttentionOptions & { readonly returnLse?: false },
): Tensor;
// oxlint-disable-next-line max-params -- q, k and v are what everybody calls them
export function attention(
  ctx: Context,
  q: Tensor,
  k: Tensor,
  v: Tensor,
  options?: AnyOptions,
): Tensor | AttentionOutput {
  checkContext("attention", ctx);
  const given = attentionOptions.parse(options);
  for (const x of [q, k, v]) checkTensor("attention", x);
  const { mask = full(), scale = (q.shape[3] ?? 1) ** -0.5, returnLse } = given;
  const { queries = whole(ctx, q), keys = whole(ctx, k) } = given;
  const backend = backendOrLocal("attention", ctx, given.backend);
  backend.check?.(ctx);
  checkAttention({ ctx, backend, scale, queries, keys }, { q, k, v });
  const returned: { lse?: Tensor } = {};
  const slices = resolveSlices(mask, queries.length, keys.length);
  const plan = { ctx, backend, scale, queries, keys, mask: slices, ...(returnLse && { returned }) };
  using rows = denseRows(q);
  using keyRows = denseRows(k);
  using valueRows = denseRows(v);
  const out = attentionOp([rows, keyRows, valueRows], plan);
  return returnLse ? { out, lse: returned.lse! } : out;
}

/** The layout of a sequence that lies on this rank as a whole. */
function whole({ mesh }: Context, x: Tensor): Layout {
  return layoutOf({ mesh: mesh.shape, axes: [], length: x.shape[2] ?? 0 });
}
