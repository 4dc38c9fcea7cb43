import {
  type AttentionBackend,
  type AttentionCall,
  type Context,
  blockwise,
  expectValue,
  type KvShard,
  option,
  spansLength,
  zeros,
} from "@mosaic/core";

/**
 * Returns a backend that broadcasts the keys of one rank after another along an axis and passes each shard to the inner
 * backend. It is the simplest possible outer backend. In an arrangement, it tests a backend as an inner one, whose keys
 * arrive in parts.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { broadcastSteps } from "@mosaic/conformance";
 * broadcastSteps("node", ring({ axis: "gpu" })).axes; // => ["node", "gpu"]
 * ```
 */
export function broadcastSteps(axis: string, inner: AttentionBackend): AttentionBackend {
  expectValue("broadcastSteps: axis", typeof axis === "string", "the name of an axis", axis);
  const backendOption = option.backend();
  expectValue("broadcastSteps: inner", backendOption.accepts(inner), backendOption.expected, inner);
  const listCoordinates = (ctx: Context, { from }: KvShard) =>
    ctx.mesh.group(axis).ranks.map((_, source) => ({ ...from, [axis]: source }));

  function* broadcastShards(
    ctx: Context,
    call: AttentionCall,
    kv: KvShard,
  ): Generator<KvShard & { readonly isLocal: boolean }> {
    const group = ctx.mesh.group(axis);
    for (const [source, from] of listCoordinates(ctx, kv).entries()) {
      const rows = spansLength(call.keys.spans(from));
      const isLocal = source === group.rank;
      using k = isLocal ? kv.k.contiguous() : ctx.device.empty(kv.k.shape.with(2, rows), kv.k.dtype);
      using v = isLocal ? kv.v.contiguous() : ctx.device.empty(kv.v.shape.with(2, rows), kv.v.dtype);
      for (const tensor of [k, v]) group.broadcast(tensor, source).wait();
      yield { k, v, from, isLocal };
    }
  }

  return {
    name: `${inner.name} in steps`,
    axes: [axis, ...inner.axes],

    attend(ctx, call, state, kv) {
      using blockwiseInner = blockwise(inner, listCoordinates(ctx, kv));
      for (const remoteShard of broadcastShards(ctx, call, kv)) blockwiseInner.attend(ctx, call, state, remoteShard);
    },

    attendBackward(ctx, call, grads, kv) {
      using blockwiseInner = blockwise(inner, listCoordinates(ctx, kv));
      for (const { isLocal, ...remoteShard } of broadcastShards(ctx, call, kv)) {
        using dk = zeros(ctx, remoteShard.k.shape);
        using dv = zeros(ctx, remoteShard.v.shape);
        blockwiseInner.attendBackward(ctx, call, { dq: grads.dq, dk, dv }, remoteShard);
        for (const sum of [dk, dv]) ctx.mesh.group(axis).allReduce(sum).wait();
        if (isLocal) ctx.device.kernels.binary("add", grads.dk, grads.dk, dk);
        if (isLocal) ctx.device.kernels.binary("add", grads.dv, grads.dv, dv);
      }
    },
  };
}
