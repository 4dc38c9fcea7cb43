import {
  type AttentionBackend,
  type AttentionCall,
  type Context,
  type Coordinate,
  describeBackend,
  type DType,
  local,
  omitAxes,
  type KvShard,
  type ProcessGroup,
  type SavedRows,
  type Tensor,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import { type Chunk, ChunkBuffers, dependencyTableCache, validator } from "@mosaic/core/context-parallel";
import {
  AllToAll,
  groupedQueryParts,
  type HeadChunk,
  type HeadRange,
  type HeadShard,
  type ShardSizes,
  computeShardSizes,
  sliceHeads,
} from "./head-exchange.ts";

export const ulyssesOptions = defineOptions("ulysses", {
  /** The mesh axis along which rows are exchanged for heads. Default "sp". */
  axis: option.string({ default: "sp" }),
  /**
   * The backend that computes the attention of each rank's heads over the whole sequence along the axis. Default: the
   * device's own kernel.
   */
  inner: option.backend({ optional: true }),
});
/** Options of `ulysses`. */
export type UlyssesOptions = OptionsOf<typeof ulyssesOptions>;

/**
 * Creates a backend for head-parallel attention: the ranks along a mesh axis exchange rows for heads, so that each rank
 * has all rows of some heads. It computes the attention of these heads and returns to every rank the results
 * for its rows. There are two exchanges in forward and two in backward, for any number of ranks. `ulyssesTraffic`
 * computes the bytes.
 *
 * The number of heads need not be divisible by the number of ranks p: the first H % p ranks have one more head, and
 * with fewer heads than ranks the last ranks have none. A KV head is sent to every rank that has a query head of its
 * group; the partial dk and dv are added at the owner of the keys, in float32 and in rank order. Any mask, placement
 * and shard lengths are supported.
 *
 * `inner` receives the whole sequence along the axis and may communicate along other axes. With `inner: ring({ axis:
 * "node" })`, the ranks with the same index in their nodes form a ring for their heads. The reverse nesting, `ring({
 * axis: "node", inner: ulysses({ axis: "gpu" }) })`, gives the same result but exchanges rows for heads at every step
 * of the ring.
 *
 * Throws an OptionError if the mesh lacks an axis or a sequence is not sharded along it, and a ShapeError or DTypeError
 * if the tensors do not match their layouts. All are checked before anything is sent.
 *
 * Source: Jacobs et al., "DeepSpeed Ulysses", 2023.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { ulysses } from "@mosaic/backend-ulysses";
 * ulysses().axes; // => ["sp"]
 * ulysses({ axis: "gpu", inner: ring({ axis: "node" }) }).axes; // => ["node", "gpu"]
 * ```
 */
export function ulysses(options?: UlyssesOptions): AttentionBackend {
  const { axis, inner = local() } = ulyssesOptions.parse(options);
  // This axis is last: its ranks together hold one shard of the sequence that `inner` attends to.
  const axes = [...inner.axes, axis];
  const validate = validator({ name: "ulysses", axis, inner, axes, sharded: ["queries", "keys"] });
  const getDependencies = dependencyTableCache({ axis, inner });
  return {
    name: "ulysses",
    description: inner.name === "local" ? `ulysses(${axis})` : `ulysses(${axis}, ${describeBackend(inner)})`,
    axes,
    check: (ctx, layouts) => validate.context(ctx, layouts),

    attend(ctx, call, state, kv) {
      validate.attend(ctx, call, state, kv);
      const headCall = createHeadCall(ctx, call, kv);
      if (!headCall) return;
      using results = new ChunkBuffers({ device: ctx.device, order: "sbhd" });
      const states = attendHeads(headCall, call, kv, results);
      using exchange = new AllToAll(headCall.group, headCall.label);
      const headChunks = exchange.exchangeHeadsForRows(states, headCall.shardSizes.queries, results);
      exchange.run();
      for (const { heads, tensors } of headChunks) {
        const [out, lse] = tensors as [Tensor, Tensor];
        if (out.size === 0) continue;
        const target = { out: sliceHeads(state.out, heads, results), lse: sliceHeads(state.lse, heads, results) };
        ctx.device.kernels.merge(target, { out, lse });
      }
    },

    attendBackward(ctx, call, grads, kv) {
      validate.attendBackward(ctx, call, grads, kv);
      const headCall = createHeadCall(ctx, call, kv);
      if (!headCall) return;
      using results = new ChunkBuffers({ device: ctx.device, order: "sbhd" });
      const gradients = attendHeadsBackward(headCall, call, kv, results);
      using exchange = new AllToAll(headCall.group, headCall.label);
      const queries = exchange.exchangeHeadsForRows(gradients.queries, headCall.shardSizes.queries, results);
      const keys = exchange.exchangeHeadsForRows(gradients.keys, headCall.shardSizes.keys, results);
      exchange.run();
      accumulate([grads.dq], queries, results);
      accumulate([grads.dk, grads.dv], keys, results);
    },
  };

  /** Returns this rank's heads of a call; undefined if no pair is visible on any rank. */
  function createHeadCall(ctx: Context, call: AttentionCall, { k, from }: KvShard): HeadCall | undefined {
    const dependencies = getDependencies(ctx, call, from);
    if (dependencies.isEmpty) return undefined;
    const group = ctx.mesh.group(axis);
    const counts = { numHeads: call.q.shape[1]!, numKvHeads: k.shape[1]! };
    const shardSizes = computeShardSizes(dependencies, counts);
    const headShard = { queries: shardSizes.queries.heads[group.rank]!, keys: shardSizes.keys.heads[group.rank]! };
    const coordinates = { at: omitAxes(call.at, [axis]), from: omitAxes(from, [axis]) };
    const heads = { parts: groupedQueryParts(counts, headShard), firstHead: headShard.queries.first };
    return { ctx, inner, group, label: `ulysses(${axis})`, shardSizes, ...heads, ...coordinates };
  }
}

/** One rank's heads of one call. */
interface HeadCall {
  readonly ctx: Context;
  readonly inner: AttentionBackend;
  readonly group: ProcessGroup;
  /** The label of collectives in messages and traces. */
  readonly label: string;
  readonly shardSizes: Record<keyof HeadShard, ShardSizes>;
  /** This rank's heads, in parts that kernels support (see `groupedQueryParts`); empty for a rank without heads. */
  readonly parts: readonly HeadShard[];
  /** Index, among the query heads of the call, of this rank's first query head. */
  readonly firstHead: number;
  /** Coordinates of the queries (`at`) and the keys (`from`) of all ranks along the axis: they omit the axis. */
  readonly at: Coordinate;
  readonly from: Coordinate;
}

/**
 * Gathers all rows of this rank's heads and computes their attention. Allocates out and lse [B,h,ΣS,…] from `results`.
 */
function attendHeads(headCall: HeadCall, call: AttentionCall, kv: KvShard, results: ChunkBuffers): Chunk {
  const { ctx, inner, parts, shardSizes, at, from } = headCall;
  const { kernels } = ctx.device;
  using inputs = new ChunkBuffers({ device: ctx.device, order: "sbhd" });
  using exchange = new AllToAll(headCall.group, headCall.label);
  const queries = exchange.exchangeRowsForHeads([call.q], shardSizes.queries, inputs);
  const keys = exchange.exchangeRowsForHeads([kv.k, kv.v], shardSizes.keys, inputs);
  exchange.run();
  const shape = queries.tensors[0]!.shape.with(3, kv.v.shape[3]!);
  const states = results.empty([float32Spec(shape), float32Spec(shape.slice(0, 3))], shape[2]!);
  kernels.fill(states.tensors[0]!, 0);
  kernels.fill(states.tensors[1]!, Number.NEGATIVE_INFINITY);
  for (const part of parts) {
    const [q, out, lse] = sliceAllHeads([...queries.tensors, ...states.tensors], part.queries, inputs) as [
      Tensor,
      Tensor,
      Tensor,
    ];
    const [k, v] = sliceAllHeads(keys.tensors, part.keys, inputs) as [Tensor, Tensor];
    const modifiers = offsetModifiers(call, headCall.firstHead + part.queries.first);
    inner.attend(ctx, { ...call, q, at, modifiers }, { out, lse }, { k, v, from });
  }
  return states;
}

/**
 * The backward of `attendHeads`. Returns dq [B,h,ΣS,D] of this rank's heads and its partial dk and dv of their KV
 * heads, allocated from `results`.
 */
function attendHeadsBackward(
  headCall: HeadCall,
  call: AttentionCall & SavedRows,
  kv: KvShard,
  results: ChunkBuffers,
): Record<keyof HeadShard, Chunk> {
  const { ctx, inner, parts, shardSizes, at, from } = headCall;
  using inputs = new ChunkBuffers({ device: ctx.device, order: "sbhd" });
  using exchange = new AllToAll(headCall.group, headCall.label);
  const queryRows = exchange.exchangeRowsForHeads(
    [call.q, call.dOut, call.lse, call.delta],
    shardSizes.queries,
    inputs,
  );
  const keys = exchange.exchangeRowsForHeads([kv.k, kv.v], shardSizes.keys, inputs);
  exchange.run();
  const createZeros = (templates: readonly Tensor[]): Chunk => {
    const gradients = results.empty(
      templates.map(({ shape }) => float32Spec(shape)),
      templates[0]!.shape[2]!,
    );
    for (const gradient of gradients.tensors) ctx.device.kernels.fill(gradient, 0);
    return gradients;
  };
  const gradients = { queries: createZeros([queryRows.tensors[0]!]), keys: createZeros(keys.tensors) };
  for (const part of parts) {
    const headTensors = sliceAllHeads([...queryRows.tensors, ...gradients.queries.tensors], part.queries, inputs);
    const [q, dOut, lse, delta, dq] = headTensors as [Tensor, Tensor, Tensor, Tensor, Tensor];
    const keyTensors = sliceAllHeads([...keys.tensors, ...gradients.keys.tensors], part.keys, inputs);
    const [k, v, dk, dv] = keyTensors as [Tensor, Tensor, Tensor, Tensor];
    const modifiers = offsetModifiers(call, headCall.firstHead + part.queries.first);
    inner.attendBackward(ctx, { ...call, q, dOut, lse, delta, at, modifiers }, { dq, dk, dv }, { k, v, from });
  }
  return gradients;
}

/**
 * Returns the modifiers of a call for its heads from `head` on. Modifiers refer to heads and samples by their global
 * indices.
 */
function offsetModifiers({ modifiers }: AttentionCall, head: number): AttentionCall["modifiers"] {
  if (!modifiers) return undefined;
  const { origin = { batch: 0, head: 0 } } = modifiers;
  return { ...modifiers, origin: { batch: origin.batch, head: origin.head + head } };
}

function float32Spec(shape: Tensor["shape"]): { readonly shape: Tensor["shape"]; readonly dtype: DType } {
  return { shape, dtype: "float32" };
}

/** Returns the same heads of several tensors, as views that `buffers` owns. */
function sliceAllHeads(tensors: readonly Tensor[], heads: HeadRange, buffers: ChunkBuffers): readonly Tensor[] {
  return tensors.map((x) => sliceHeads(x, heads, buffers));
}

/** Adds the contributions of all ranks in rank order, so that results are bitwise reproducible. */
function accumulate(targets: readonly Tensor[], headChunks: readonly HeadChunk[], buffers: ChunkBuffers): void {
  for (const { heads, tensors } of headChunks) {
    for (const [i, tensor] of tensors.entries()) {
      if (tensor.size === 0) continue;
      const sum = sliceHeads(targets[i]!, heads, buffers);
      tensor.device.kernels.binary("add", sum, sum, tensor);
    }
  }
}
