// Runs steps until the process is terminated. Each step is an all-reduce; the rank given by the first argument is 20 ms
// late.
import * as mosaic from "@mosaic/attention";

const ctx = await mosaic.init();
const x = mosaic.zeros(ctx, [1024]);
const isSlow = ctx.rank === Number(process.argv[2]);
for (let step = 0; ; step++) {
  if (isSlow) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
  ctx.world.allReduce(x).wait();
  await ctx.device.stream.synchronize();
  ctx.world.markStep();
  if (step === 5 && ctx.rank === 0) console.log(`running ${process.env.MOSAIC_RUN_ID}`);
}
