// A Mosaic program as users write it, started by anything: sums the ranks over all of them. `foreign-rank.mjs ucx|local`.
import { cpu } from "@mosaic/kernels-cpu";
import { full, init, launchEnvironment } from "@mosaic/core";

const [engine = "local"] = process.argv.slice(2);
const connect = (await import(`@mosaic/collectives-${engine}`))[engine];
try {
  const ctx = await init({ device: cpu({ threads: 1 }), collectives: connect({ connectTimeout: 15 }) });
  const sum = full(ctx, [1], ctx.rank + 1);
  ctx.world.allReduce(sum).wait();
  const { launcher, localRank, localWorldSize } = launchEnvironment();
  console.log(
    `${launcher}: rank ${ctx.rank} of ${ctx.size}, ${localRank} of ${localWorldSize}: ${(await sum.read())[0]}`,
  );
  await ctx.close();
} catch (error) {
  console.log(`${error.name}: ${error.message}`);
  process.exitCode = 1;
}
