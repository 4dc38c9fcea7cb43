import { type AttentionBackend, type Context, cpu, local, world, zeros } from "@mosaic/attention";
import { type AttentionCall, type KvShard } from "@mosaic/attention/core";
import { ChunkBuffers, dependencyTableCache, validator } from "@mosaic/attention/context-parallel";
import { alongOneAxis, backendSuite, type MakeWorld, validationSuite, variantSuite } from "@mosaic/conformance";

function broadcastBackend(axis: string, inner = local()): AttentionBackend {
  const validate = validator({ name: "broadcast", axis, inner });
  const dependenciesOf = dependencyTableCache({ axis, inner });

  function* blocks(ctx: Context, call: AttentionCall, { k, v, from }: KvShard): Generator<KvShard> {
    const { size, keyRows } = dependenciesOf(ctx, call, from);
    const group = ctx.mesh.group(axis);
    for (let source = 0; source < size; source++) {
      using buffers = new ChunkBuffers({ device: ctx.device });
      const chunk = source === group.rank ? buffers.contiguous([k, v]) : buffers.empty([k, v], keyRows(source));
      for (const tensor of chunk.wire) group.broadcast(tensor, source).wait();
      yield { k: chunk.tensors[0]!, v: chunk.tensors[1]!, from: { ...from, [axis]: source } };
    }
  }
  return {
    name: "broadcast",
    axes: [axis, ...inner.axes],
    check: (ctx, layouts) => validate.context(ctx, layouts),
    attend(ctx, call, state, kv) {
      validate.attend(ctx, call, state, kv);
      for (const block of blocks(ctx, call, kv)) inner.attend(ctx, call, state, block);
    },
    attendBackward(ctx, call, grads, kv) {
      validate.attendBackward(ctx, call, grads, kv);
      for (const block of blocks(ctx, call, kv)) {
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

// Every mask, placement and gradient, ragged shards, NaN-poisoned buffers, delayed messages; sinks, softcap, dropout;
// then wrong calls.
const makeWorld: MakeWorld = (ranks, { wrapDevice, ...options }) =>
  world(ranks, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });
const arrangements = alongOneAxis(broadcastBackend, [3]);
const cases = [
  ...backendSuite({ makeWorld, arrangements, dtypes: ["float32"] }),
  ...variantSuite({ makeWorld, arrangements }),
  ...validationSuite({ makeWorld, backend: broadcastBackend, sharded: ["keys"] }),
];
for (const { run } of cases) await run(); // rejects if the backend is wrong
console.log(`${cases.length} cases passed`);
