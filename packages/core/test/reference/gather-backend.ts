import { type AttentionBackend, local } from "../../src/attention/backend.ts";
import type { Context } from "../../src/context.ts";
import { omitAxes } from "../../src/mesh.ts";
import type { Coordinate } from "../../src/mesh.ts";
import type { Layout } from "../../src/placement/placement.ts";
import { spansLength } from "../../src/placement/span.ts";
import type { Tensor } from "../../src/tensor.ts";

/** The shortest backend over ranks: every rank fetches all keys, and all ranks add up their gradients. */
export function gather(axis = "sp", inner: AttentionBackend = local()): AttentionBackend {
  return {
    name: "gather",
    axes: [axis, ...inner.axes],
    attend(ctx, call, state, kv) {
      using k = gatherRows(ctx, kv.k, { axis, from: kv.from, layout: call.keys });
      using v = gatherRows(ctx, kv.v, { axis, from: kv.from, layout: call.keys });
      inner.attend(ctx, call, state, { k, v, from: omitAxes(kv.from, [axis]) });
    },
    attendBackward(ctx, call, grads, kv) {
      const where = { axis, from: kv.from, layout: call.keys };
      using k = gatherRows(ctx, kv.k, where);
      using v = gatherRows(ctx, kv.v, where);
      using dk = zerosLike(k);
      using dv = zerosLike(v);
      inner.attendBackward(ctx, call, { dq: grads.dq, dk, dv }, { k, v, from: omitAxes(kv.from, [axis]) });
      for (const [into, whole] of [
        [grads.dk, dk],
        [grads.dv, dv],
      ] as const) {
        ctx.mesh.group(axis).allReduce(whole).wait();
        const start = shardsBefore(ctx, where);
        using own = whole.slice(2, start, start + into.shape[2]!);
        ctx.device.kernels.binary("add", into, into, own);
      }
    },
  };
}

interface Where {
  readonly axis: string;
  readonly from: Coordinate;
  readonly layout: Layout;
}

function counts(ctx: Context, { axis, from, layout }: Where): number[] {
  return Array.from({ length: ctx.mesh.shape[axis]! }, (_, i) => spansLength(layout.spans({ ...from, [axis]: i })));
}

function shardsBefore(ctx: Context, where: Where): number {
  return counts(ctx, where)
    .slice(0, where.from[where.axis])
    .reduce((sum, count) => sum + count, 0);
}

/** [B,H,S,D] of every rank along the axis, one after another. */
function gatherRows(ctx: Context, x: Tensor, where: Where): Tensor {
  const [b, h, , d] = x.shape as [number, number, number, number];
  const rows = counts(ctx, where);
  using view = x.permute([2, 0, 1, 3]);
  using dense = view.contiguous();
  using all = ctx.device.empty([rows.reduce((sum, count) => sum + count, 0), b, h, d], x.dtype);
  const elements = rows.map((count) => count * b * h * d);
  ctx.mesh.group(where.axis).allGather(all, dense, { counts: elements }).wait();
  return all.permute([1, 2, 0, 3]);
}

function zerosLike(x: Tensor): Tensor {
  const zeros = x.device.empty(x.shape, "float32");
  x.device.kernels.fill(zeros, 0);
  return zeros;
}
