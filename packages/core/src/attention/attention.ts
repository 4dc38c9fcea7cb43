import { defineOp } from "../autograd/define-op.ts";
import { type AttentionResult, getOrComputeAttention } from "../autograd/saved-attention.ts";
import type { Context } from "../context.ts";
import type { Slice } from "../mask/slice.ts";
import { batchMaskOptions, checkDistances, resolveBatchMaskUnchecked } from "../mask/samples.ts";
import * as option from "../option.ts";
import { checkArgument, defineOptions, type OptionsOf } from "../options.ts";
import type { Layout } from "../placement/placement.ts";
import { layoutOf } from "../placement/layout.ts";
import { checkSharding, rowSharding, withAxisSharding } from "../placement/sharding.ts";
import type { Tensor } from "../tensor.ts";
import { transferToActiveTracker } from "../tracking.ts";
import { contiguousRows } from "../views.ts";
import { type AttentionBackend, type AttentionCall, resolveBackendOrLocal, type KvShard } from "./backend.ts";
import { checkContext, checkTensor } from "../arguments.ts";
import { backendLabel, checkAttention, checkFeatures } from "./check.ts";
import { attentionModifierOptions, checkSlopes, resolveModifiers } from "./modifiers.ts";
import { recordCall } from "./record-call.ts";
import { checkSinks, mergeSinksUnchecked, computeSinkGradient } from "./sinks.ts";
import type { AttentionModifiers, AttentionState, QkvGrads } from "./tile.ts";

// Shapes: B batch, H heads, Hkv KV heads, Sq and Sk local queries and keys, D head size, Dv head size of the values.

export const attentionOptions = defineOptions("attention", {
  /**
   * The name of a registered backend, or a backend. Required if the mesh shards sequences, which any axis of length > 1
   * does unless it is data-parallel. Default: "local".
   */
  backend: option.either(option.string(), option.backend(), { optional: true }),
  ...batchMaskOptions.fields,
  /** Factor on q·k. Default 1 / √D. */
  scale: option.number({ optional: true }),
  /**
   * Attention sinks, [H] in float32 or q's dtype: one logit per query head that every row's softmax includes beside the
   * scores and that has no value, as in gpt-oss. Differentiable: the gradient is the contribution of this rank's rows,
   * which `reduceGradients` sums over ranks. Default: none.
   */
  sinks: option.tensor({ optional: true }),
  ...attentionModifierOptions.fields,
  /** Layout of the queries. Default: all of them are on this rank. */
  queries: option.layout({ optional: true }),
  /** Layout of the keys. Default: all of them are on this rank. */
  keys: option.layout({ optional: true }),
  /** Whether to return `lse` as well. Default false. */
  returnLse: option.boolean({ default: false }),
});
type AttentionOptionsWithLse = OptionsOf<typeof attentionOptions>;
/** Options of `attention`. */
export type AttentionOptions = Omit<AttentionOptionsWithLse, "returnLse">;

/** Result of `attention` with `returnLse`. */
export interface AttentionOutput {
  /** [B,H,Sq,Dv] in q's dtype. */
  readonly out: Tensor;
  /**
   * [B,H,Sq] float32: ln Σ exp(score) over the keys visible to a query and its head's sink, −Infinity if there is
   * neither. Scores are scale · q·k, after softcap and slopes. Not differentiable.
   */
  readonly lse: Tensor;
}

/**
 * Returns the state of attention over no keys, for q [B,H,S,D]: out [B,H,S,Dv] is 0 and lse [B,H,S] is −Infinity, both
 * float32. Keys are added with `attend` of a backend or of the kernels. The head size of the values defaults to D.
 *
 * @example
 * ```ts
 * import { emptyState, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using q = randn(device, [1, 2, 3, 8]);
 * const { out, lse } = emptyState(q, 16);
 * [out.shape, lse.shape]; // => [[1, 2, 3, 16], [1, 2, 3]]
 * (await lse.read())[0]; // => -Infinity
 * ```
 * @throws OptionError unless q is a Tensor and the head size an integer ≥ 0; ShapeError unless q has four axes.
 */
export function emptyState(q: Tensor, valueHeadDim: number = q?.shape?.[3] ?? 0): AttentionState {
  checkTensor("emptyState", q, 4);
  checkArgument("emptyState: valueHeadDim", valueHeadDim, option.integer({ min: 0 }));
  const out = allocateBshd(q, "float32", valueHeadDim);
  const lse = q.device.empty(q.shape.slice(0, -1), "float32");
  q.device.kernels.fill(out, 0);
  q.device.kernels.fill(lse, -Infinity);
  return { out, lse };
}

/** Allocates [B,H,S,D] with the memory order [B,S,H,D], so that merging the heads is a view. */
function allocateBshd({ device, shape: [b, h, s, d] }: Tensor, dtype: Tensor["dtype"], headDim: number = d!): Tensor {
  using memory = device.empty([b!, s!, h!, headDim], dtype);
  return memory.permute([0, 2, 1, 3]);
}

/**
 * Allocates a tensor of x's shape: contiguous if x is, so that a leaf's gradient needs no copy, otherwise in the memory
 * order [B,S,H,D].
 */
function emptyLike(x: Tensor, dtype: Tensor["dtype"]): Tensor {
  return x.isContiguous ? x.device.empty(x.shape, dtype) : allocateBshd(x, dtype);
}

/** Converts x to `dtype` with one rounding, in the same memory order. Takes ownership of x. */
function castTo(x: Tensor, dtype: Tensor["dtype"]): Tensor {
  if (x.dtype === dtype) return x;
  const out = emptyLike(x, dtype);
  x.device.kernels.copy(out, x);
  x.dispose();
  return out;
}

/** The axis of the rows in q, k and v. */
const SEQUENCE_AXIS = 2;

interface AttentionContext {
  readonly ctx: Context;
  readonly backend: AttentionBackend;
  readonly mask: readonly Slice[];
  readonly modifiers: AttentionModifiers | undefined;
  readonly scale: number;
  readonly queries: Layout;
  readonly keys: Layout;
  /** Receives a handle of lse. */
  readonly lseOutput?: { lse?: Tensor };
}

function createAttentionCall(
  { ctx, scale, mask, modifiers, queries, keys }: AttentionContext,
  q: Tensor,
): AttentionCall {
  return { q, at: ctx.mesh.coordinate, scale, mask, modifiers, queries, keys };
}

function createKvShard({ ctx }: AttentionContext, k: Tensor, v: Tensor): KvShard {
  return { k, v, from: ctx.mesh.coordinate };
}

// oxlint-disable-next-line max-params -- q, k and v are the field's names
function attend(context: AttentionContext, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | null): AttentionResult {
  const state = emptyState(q, v.shape[3]);
  const call = createAttentionCall(context, q);
  recordCall(context.ctx, context.backend, "forward", { ...call, sinks }, createKvShard(context, k, v));
  context.backend.attend(context.ctx, call, state, createKvShard(context, k, v));
  if (sinks) mergeSinksUnchecked(state, sinks);
  return { output: castTo(state.out, q.dtype), lse: state.lse };
}

const attentionOp = defineOp({
  name: "attention",
  forward([q, k, v, sinks]: [Tensor, Tensor, Tensor, Tensor | null], context: AttentionContext) {
    const { output, lse } = getOrComputeAttention(q.shape.with(3, v.shape[3]!), () => attend(context, q, k, v, sinks));
    if (context.lseOutput) context.lseOutput.lse = lse.detach();
    // A separate handle, as for the inputs: the caller may dispose its handle before the backward.
    const slopes = context.modifiers?.slopes?.detach() ?? null;
    return { output, saved: { q, k, v, sinks, slopes, output, lse, context } };
  },
  backward({ q, k, v, sinks, slopes, output, lse, context }, dOutput, needsInputGrad) {
    context.ctx.assertOpen(`${context.backend.name}: backward`);
    using dOut = contiguousRows(dOutput);
    using delta = q.device.empty(lse.shape, "float32");
    q.device.kernels.rowDot(delta, dOut, output);
    const grads: QkvGrads = {
      dq: createGradientAccumulator(q),
      dk: createGradientAccumulator(k),
      dv: createGradientAccumulator(v),
    };
    const modifiers = slopes ? { ...context.modifiers, slopes } : context.modifiers;
    const call = { ...createAttentionCall({ ...context, modifiers }, q), dOut, lse, delta };
    recordCall(context.ctx, context.backend, "backward", { ...call, sinks }, createKvShard(context, k, v));
    context.backend.attendBackward(context.ctx, call, grads, createKvShard(context, k, v));
    const dSinks = sinks && needsInputGrad[3] ? computeSinkGradient(sinks, lse, delta) : null;
    return [castTo(grads.dq, q.dtype), castTo(grads.dk, k.dtype), castTo(grads.dv, v.dtype), dSinks];
  },
});

function createGradientAccumulator(input: Tensor): Tensor {
  const zeros = emptyLike(input, "float32");
  input.device.kernels.fill(zeros, 0);
  return zeros;
}

/**
 * Computes attention softmax(scale · q kᵀ) v over all keys that the mask makes visible, on whichever rank they are. The
 * result is exact on any mesh. q [B,H,Sq,D], k [B,Hkv,Sk,D] and v [B,Hkv,Sk,Dv], with H a multiple of Hkv, are this
 * rank's shards. Returns [B,H,Sq,Dv] in q's dtype, in the memory order [B,Sq,H,Dv]. A query without a visible key
 * yields 0. Differentiable in q, k, v and `sinks`. Sums are float32 and rounded once. If Dv differs from D, as in
 * multi-head latent attention (DeepSeek-V2), the device must have the feature `valueHeadDim`.
 *
 * For a batch of sequences of different lengths, padded on the left or the right, pass `lengths` and `padding`. For a
 * different mask per sample, pass a list of masks. Rows of padding yield 0, an lse of −Infinity (their sink, if there
 * is one), and gradients of 0. If samples attend to different keys, the device must have the feature `sampleMasks`.
 *
 * With `returnLse`, returns `{ out, lse }`, as flash_attn does with return_softmax_lse. Two such results over disjoint
 * keys can be merged.
 *
 * Collective along the backend's axes. The gradients of k and v include the queries of every rank. A loss that is a sum
 * over the sequence is therefore the sum of the shards' losses.
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
 *
 * // Two sequences of 3 and 5 tokens, padded on the left.
 * using x = randn(ctx, [2, 1, 5, 8]);
 * const lengths = { queries: [3, 5], keys: [3, 5] };
 * const padded = attention(ctx, x, x, x, { mask: masks.causal(), lengths, padding: "left", returnLse: true });
 * Array.from(await padded.lse.read(), Number.isFinite); // => [false, false, true, true, true, true, true, true, true, true]
 * ```
 * @throws ShapeError, DTypeError or OptionError on this rank, before anything is sent. This includes a mask or a layout
 * that violates its contract (`Mask`, `Placement`), which is verified once for each pair of lengths, and q, k or v that
 * are known to be sharded differently (`Tensor.sharding`).
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
// oxlint-disable-next-line max-params -- q, k and v are the field's names
export function attention(
  ctx: Context,
  q: Tensor,
  k: Tensor,
  v: Tensor,
  options?: AttentionOptionsWithLse,
): Tensor | AttentionOutput {
  checkContext("attention", ctx);
  const parsedOptions = attentionOptions.parse(options);
  for (const x of [q, k, v]) checkTensor("attention", x);
  const { scale = (q.shape[3] ?? 1) ** -0.5, sinks = null, returnLse } = parsedOptions;
  const { queries = unshardedLayout(ctx, q), keys = unshardedLayout(ctx, k) } = parsedOptions;
  const backend = resolveBackendOrLocal("attention", ctx, parsedOptions.backend);
  backend.check?.(ctx);
  const where = `${backendLabel(backend)}, rank ${ctx.rank}`;
  checkAttention(where, { ctx, backend, queries, keys }, { q, k, v });
  backend.check?.(ctx, { queries, keys });
  const mesh = ctx.mesh.shape;
  checkSharding(`${where}: queries`, q, { axis: SEQUENCE_AXIS, layout: queries, mesh });
  for (const x of [k, v]) checkSharding(`${where}: keys`, x, { axis: SEQUENCE_AXIS, layout: keys, mesh });
  const batchSizes = { batch: q.shape[0]!, queries: queries.length, keys: keys.length };
  if (sinks) checkSinks(where, sinks, q);
  if (parsedOptions.alibiSlopes)
    checkSlopes(`${where}: alibiSlopes`, parsedOptions.alibiSlopes, { q, heads: q.shape[1]!, hasAllHeads: true });
  const batchMask = resolveBatchMaskUnchecked(where, parsedOptions, batchSizes);
  if (parsedOptions.alibiSlopes) checkDistances(where, "alibiSlopes", parsedOptions, batchSizes);
  const modifiers = resolveModifiers(ctx, parsedOptions, { q, maskModifiers: batchMask.modifiers });
  checkFeatures(ctx.device, { k, v }, { q: [], k: [], scale, mask: batchMask.mask, modifiers });
  const lseOutput: { lse?: Tensor } = {};
  const { mask } = batchMask;
  const context = { ctx, backend, scale, mask, modifiers, queries, keys, ...(returnLse && { lseOutput }) };
  using contiguousQ = contiguousRows(q);
  using contiguousK = contiguousRows(k);
  using contiguousV = contiguousRows(v);
  const out = attentionOp([contiguousQ, contiguousK, contiguousV, sinks], context);
  out.sharding = withAxisSharding(rowSharding("attention", [q]), { axis: SEQUENCE_AXIS, layout: queries, mesh });
  if (!lseOutput.lse) return out;
  transferToActiveTracker(lseOutput.lse);
  return { out, lse: lseOutput.lse };
}

/** Returns the layout of a sequence that is entirely on this rank. */
function unshardedLayout({ mesh }: Context, x: Tensor): Layout {
  return layoutOf({ mesh: mesh.shape, axes: [], length: x.shape[2] ?? 0 });
}
