import { type AttentionBackend, type Context, local, omitAxes, type Tensor } from "@mosaic/core";

/** Keys of all ranks by allGather, gradients home by allToAll; one sequence of one head, and equal shards. */
export function gathering(axis = "sp"): AttentionBackend {
  const inner = local();
  const group = (ctx: Context) => ctx.mesh.group(axis);
  const whole = (ctx: Context, { shape, dtype }: Tensor, of = dtype): Tensor =>
    ctx.device.empty(shape.with(2, shape[2]! * group(ctx).size), of);
  const gather = (ctx: Context, x: Tensor): Tensor => {
    const all = whole(ctx, x);
    group(ctx).allGather(all, x).wait();
    return all;
  };
  return {
    name: "gathering",
    axes: [axis],
    attend(ctx, call, state, kv) {
      using k = gather(ctx, kv.k);
      using v = gather(ctx, kv.v);
      inner.attend(ctx, call, state, { k, v, from: omitAxes(kv.from, [axis]) });
    },
    attendBackward(ctx, call, { dq, ...home }, kv) {
      const { kernels } = ctx.device;
      using k = gather(ctx, kv.k);
      using v = gather(ctx, kv.v);
      using dk = whole(ctx, kv.k, "float32");
      using dv = whole(ctx, kv.v, "float32");
      for (const sum of [dk, dv]) kernels.fill(sum, 0);
      inner.attendBackward(ctx, call, { dq, dk, dv }, { k, v, from: omitAxes(kv.from, [axis]) });
      for (const [into, sum] of [[home.dk, dk] as const, [home.dv, dv] as const]) {
        using parts = whole(ctx, into);
        group(ctx).allToAll(parts, sum).wait();
        const rows = into.shape[2]!;
        for (let rank = 0; rank < group(ctx).size; rank++) {
          using part = parts.slice(2, rank * rows, (rank + 1) * rows);
          kernels.binary("add", into, into, part);
        }
      }
    },
  };
}
