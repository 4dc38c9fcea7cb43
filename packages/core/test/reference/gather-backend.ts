import { type AttentionBackend, local } from "../../src/attention/backend.ts";
import type { Context } from "../../src/context.ts";
import { omitAxes } from "../../src/mesh.ts";
import type { Coordinate } from "../../src/mesh.ts";
import type { Layout } from "../../src/placement/placement.ts";
import { spansLength } from "../../src/placement/span.ts";
import type { Tensor } from "../../src/tensor.ts";

/** A minimal distributed backend: every rank gathers all keys, and the gradients of the keys are all-reduced. */
export function allGatherBackend(axis = "sp", inner: AttentionBackend = local()): AttentionBackend {
  return {
    name: "gather",
    axes: [axis, ...inner.axes],
    attend(ctx, call, state, kv) {
      using k = gatherRows(ctx, kv.k, { axis, from: kv.from, layout: call.keys });
      using v = gatherRows(ctx, kv.v, { axis, from: kv.from, layout: call.keys });
      inner.attend(ctx, call, state, { k, v, from: omitAxes(kv.from, [axis]) });
    },
    attendBackward(ctx, call, grads, kv) {
      const shardLocation = { axis, from: kv.from, layout: call.keys };
      using k = gatherRows(ctx, kv.k, shardLocation);
      using v = gatherRows(ctx, kv.v, shardLocation);
      using dk = zerosLike(k);
      using dv = zerosLike(v);
      inner.attendBackward(ctx, call, { dq: grads.dq, dk, dv }, { k, v, from: omitAxes(kv.from, [axis]) });
      for (const [localGrad, fullGrad] of [
        [grads.dk, dk],
        [grads.dv, dv],
      ] as const) {
        ctx.mesh.group(axis).allReduce(fullGrad).wait();
        const start = countRowsBefore(ctx, shardLocation);
        using ownRows = fullGrad.slice(2, start, start + localGrad.shape[2]!);
        ctx.device.kernels.binary("add", localGrad, localGrad, ownRows);
      }
    },
  };
}

interface ShardLocation {
  readonly axis: string;
  readonly from: Coordinate;
  readonly layout: Layout;
}

function countShardRows(ctx: Context, { axis, from, layout }: ShardLocation): number[] {
  return Array.from({ length: ctx.mesh.shape[axis]! }, (_, i) => spansLength(layout.spans({ ...from, [axis]: i })));
}

function countRowsBefore(ctx: Context, location: ShardLocation): number {
  return countShardRows(ctx, location)
    .slice(0, location.from[location.axis])
    .reduce((sum, count) => sum + count, 0);
}

/** Gathers [B,H,S,D] of every rank along the axis, concatenated along S. */
function gatherRows(ctx: Context, x: Tensor, location: ShardLocation): Tensor {
  const [b, h, , d] = x.shape as [number, number, number, number];
  const rows = countShardRows(ctx, location);
  using view = x.permute([2, 0, 1, 3]);
  using contiguousRows = view.contiguous();
  using gatheredRows = ctx.device.empty([rows.reduce((sum, count) => sum + count, 0), b, h, d], x.dtype);
  const elementCounts = rows.map((count) => count * b * h * d);
  ctx.mesh.group(location.axis).allGather(gatheredRows, contiguousRows, { counts: elementCounts }).wait();
  return gatheredRows.permute([1, 2, 0, 3]);
}

function zerosLike(x: Tensor): Tensor {
  const zeros = x.device.empty(x.shape, "float32");
  x.device.kernels.fill(zeros, 0);
  return zeros;
}
