import { type AttentionBackend, type Context, local, omitAxes, type Tensor } from "@mosaic/core";

/**
 * Gathers keys of all ranks by allGather, and returns gradients by allToAll. For one sequence of one head, and equal
 * shards.
 */
export function gatheringBackend(axis = "sp"): AttentionBackend {
  const inner = local();
  const group = (ctx: Context) => ctx.mesh.group(axis);
  const createFullTensor = (ctx: Context, { shape, dtype }: Tensor, resultDtype = dtype): Tensor =>
    ctx.device.empty(shape.with(2, shape[2]! * group(ctx).size), resultDtype);
  const gather = (ctx: Context, x: Tensor): Tensor => {
    const gathered = createFullTensor(ctx, x);
    group(ctx).allGather(gathered, x).wait();
    return gathered;
  };
  return {
    name: "gathering",
    axes: [axis],
    attend(ctx, call, state, kv) {
      using k = gather(ctx, kv.k);
      using v = gather(ctx, kv.v);
      inner.attend(ctx, call, state, { k, v, from: omitAxes(kv.from, [axis]) });
    },
    attendBackward(ctx, call, { dq, ...shardGrads }, kv) {
      const { kernels } = ctx.device;
      using k = gather(ctx, kv.k);
      using v = gather(ctx, kv.v);
      using dk = createFullTensor(ctx, kv.k, "float32");
      using dv = createFullTensor(ctx, kv.v, "float32");
      for (const sum of [dk, dv]) kernels.fill(sum, 0);
      inner.attendBackward(ctx, call, { dq, dk, dv }, { k, v, from: omitAxes(kv.from, [axis]) });
      for (const [shardGrad, sum] of [[shardGrads.dk, dk] as const, [shardGrads.dv, dv] as const]) {
        using contributions = createFullTensor(ctx, shardGrad);
        group(ctx).allToAll(contributions, sum).wait();
        const rows = shardGrad.shape[2]!;
        for (let rank = 0; rank < group(ctx).size; rank++) {
          using contribution = contributions.slice(2, rank * rows, (rank + 1) * rows);
          kernels.binary("add", shardGrad, shardGrad, contribution);
        }
      }
    },
  };
}
