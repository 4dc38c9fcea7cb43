// Trains for many steps in a world of two ranks. Prints samples of the resident memory, in bytes, as JSON.
import * as mosaic from "@mosaic/attention";

const steps = Number(process.argv[2]);
const contexts = await mosaic.world(2, { device: () => mosaic.cpu({ threads: 1 }) });
const ranks = contexts.map((ctx) => ({
  ctx,
  attn: new mosaic.MultiAxisAttention(ctx, {
    embedDim: 8,
    numHeads: 2,
    attentionAxis: 1,
    backend: "ring",
    causal: true,
  }),
}));

/** Runs one step on both ranks. Resolves when both have completed it. */
async function step() {
  const sums = ranks.map(({ ctx, attn }) => {
    const x = mosaic.randn(ctx, [1, 6, 8]);
    x.requiresGrad = true;
    const out = attn.forward(x);
    const squares = mosaic.square(out);
    const loss = mosaic.sum(squares);
    loss.backward();
    mosaic.reduceGradients(ctx, attn);
    attn.zeroGrad();
    for (const tensor of [x.grad, x, out, squares]) tensor.dispose();
    return loss;
  });
  for (const sum of sums) {
    await sum.item();
    sum.dispose();
  }
}

function readResidentBytes() {
  globalThis.gc();
  return process.memoryUsage.rss();
}

const samples = [];
// Each sample runs garbage collection, which also discards much of V8's optimized code.
const SAMPLES = 40;
for (let i = 1; i <= steps; i++) {
  await step();
  if (i % (steps / SAMPLES) === 0) samples.push(readResidentBytes());
}
const [allocated] = contexts.map(({ device }) => device.memory().allocated);
console.log(JSON.stringify({ samples, allocated }));
for (const { ctx, attn } of ranks) {
  attn.dispose();
  await ctx.close();
}
