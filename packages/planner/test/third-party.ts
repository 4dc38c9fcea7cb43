import {
  type AttentionBackend,
  type AttentionCall,
  type Context,
  type KvShard,
  local,
  spansLength,
  type Tensor,
  zeros,
} from "@mosaic/core";
import { ChunkBuffers, dependencyTableCache, validator } from "@mosaic/core/context-parallel";

// Backends with reductions that do not depend on the planner.

/**
 * The backend of the project's README: every rank broadcasts its keys in turn, and the gradients of keys are reduced.
 */
export function broadcastingBackend(axis: string, inner: AttentionBackend = local()): AttentionBackend {
  const validate = validator({ name: "broadcasting", axis, inner });
  const getDependencies = dependencyTableCache({ axis, inner });

  function* broadcastBlocks(ctx: Context, call: AttentionCall, { k, v, from }: KvShard): Generator<KvShard> {
    const { size, keyRows } = getDependencies(ctx, call, from);
    const group = ctx.mesh.group(axis);
    for (let source = 0; source < size; source++) {
      using buffers = new ChunkBuffers({ device: ctx.device });
      const chunk = source === group.rank ? buffers.contiguous([k, v]) : buffers.empty([k, v], keyRows(source));
      for (const tensor of chunk.wire) group.broadcast(tensor, source).wait();
      yield { k: chunk.tensors[0]!, v: chunk.tensors[1]!, from: { ...from, [axis]: source } };
    }
  }
  return {
    name: "broadcasting",
    axes: [axis, ...inner.axes],
    check: (ctx, layouts) => validate.context(ctx, layouts),
    attend(ctx, call, state, kv) {
      validate.attend(ctx, call, state, kv);
      for (const block of broadcastBlocks(ctx, call, kv)) inner.attend(ctx, call, state, block);
    },
    attendBackward(ctx, call, grads, kv) {
      validate.attendBackward(ctx, call, grads, kv);
      for (const block of broadcastBlocks(ctx, call, kv)) {
        using dk = zeros(ctx, block.k.shape);
        using dv = zeros(ctx, block.v.shape);
        inner.attendBackward(ctx, call, { dq: grads.dq, dk, dv }, block);
        for (const sum of [dk, dv]) ctx.mesh.group(axis).allReduce(sum).wait();
        if (block.from[axis] !== kv.from[axis]) continue;
        ctx.device.kernels.binary("add", grads.dk, grads.dk, dk);
        ctx.device.kernels.binary("add", grads.dv, grads.dv, dv);
      }
    },
  };
}

/** Options of `scatteringBackend`. */
export interface ScatteringOptions {
  /** Number of column ranges into which gradients are cut, each scattered separately. Default: 1. */
  readonly numCuts?: number;
  readonly op?: "sum" | "mean";
  /** Called with each part of a gradient before it is scattered. */
  readonly injectFault?: (ctx: Context, part: Tensor) => void;
}

/**
 * Gathers keys of all ranks by allGather, and returns gradients by reduceScatter, in ranges of columns. For any heads
 * and ragged shards.
 */
export function scatteringBackend({
  numCuts: cuts = 1,
  op = "sum",
  injectFault,
}: ScatteringOptions = {}): AttentionBackend {
  const inner = local();
  return {
    name: "scattering",
    axes: ["sp"],
    attend(ctx, call, state, kv) {
      using k = gatherShards(ctx, call, kv.k);
      using v = gatherShards(ctx, call, kv.v);
      inner.attend(ctx, call, state, { k, v, from: {} });
    },
    attendBackward(ctx, call, { dq, ...shardGrads }, kv) {
      using k = gatherShards(ctx, call, kv.k);
      using v = gatherShards(ctx, call, kv.v);
      using dk = zeros(ctx, k.shape);
      using dv = zeros(ctx, v.shape);
      inner.attendBackward(ctx, call, { dq, dk, dv }, { k, v, from: {} });
      for (const [shardGrad, sum] of [[shardGrads.dk, dk] as const, [shardGrads.dv, dv] as const]) {
        const width = shardGrad.shape[3]! / cuts;
        for (let cut = 0; cut < cuts; cut++) {
          using gradColumns = shardGrad.slice(3, cut * width, (cut + 1) * width);
          using sumColumns = sum.slice(3, cut * width, (cut + 1) * width);
          using shardSum = reduceScatterRows(ctx, call, sumColumns);
          ctx.device.kernels.binary("add", gradColumns, gradColumns, shardSum);
        }
      }
    },
  };

  /** Returns the rows of all ranks. Rows are outermost in memory, so that those of one rank are contiguous. */
  function gatherShards(ctx: Context, call: AttentionCall, x: Tensor): Tensor {
    const [batch, numHeads, , size] = x.shape as [number, number, number, number];
    const lengths = shardLengths(ctx, call);
    const width = batch * numHeads * size;
    using rowsFirst = x.permute([2, 0, 1, 3]);
    using ownRows = rowsFirst.contiguous();
    using allRows = ctx.device.empty([sum(lengths), batch, numHeads, size], x.dtype);
    const counts = lengths.map((length) => length * width);
    ctx.mesh.group("sp").allGather(allRows, ownRows, { counts }).wait();
    return allRows.permute([1, 2, 0, 3]);
  }

  function reduceScatterRows(ctx: Context, call: AttentionCall, x: Tensor): Tensor {
    const [batch, numHeads, , size] = x.shape as [number, number, number, number];
    const lengths = shardLengths(ctx, call);
    const counts = lengths.map((length) => length * batch * numHeads * size);
    using rowsFirst = x.permute([2, 0, 1, 3]);
    using allRows = rowsFirst.contiguous();
    injectFault?.(ctx, allRows);
    using ownRows = ctx.device.empty([lengths[ctx.mesh.coordinate["sp"]!]!, batch, numHeads, size], x.dtype);
    ctx.mesh.group("sp").reduceScatter(ownRows, allRows, op, { counts }).wait();
    return ownRows.permute([1, 2, 0, 3]);
  }
}

function shardLengths(ctx: Context, call: AttentionCall): number[] {
  return Array.from({ length: ctx.mesh.shape["sp"]! }, (_, sp) => spansLength(call.keys.spans({ sp })));
}

function sum(lengths: readonly number[]): number {
  return lengths.reduce((total, length) => total + length, 0);
}
