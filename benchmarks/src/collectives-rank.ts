// One rank of the collective cases. Rank 0 reports.
import * as mosaic from "@mosaic/attention";
import type { Work } from "@mosaic/attention/core";
import { now } from "./case.ts";
import { type CollectivesJob, type Operation, operations, type Timing } from "./collectives.ts";

const { repetitions, largeBytes } = JSON.parse(process.argv[2]!) as CollectivesJob;

await using ctx = await mosaic.init({ device: mosaic.cpu({ threads: 1 }) });
const { world } = ctx;

for (const operation of operations) {
  await timeAndPrint(operation, 4 * world.size * 2, 500);
  await timeAndPrint(operation, largeBytes, 4);
}
using sendBuffer = mosaic.zeros(ctx, [largeBytes / 4]);
using copyTarget = mosaic.zeros(ctx, [largeBytes / 4]);
print({
  operation: "copy",
  bytes: largeBytes,
  seconds: await measureMinSeconds(() => ctx.device.kernels.copy(copyTarget, sendBuffer), 4),
});

/** Times `count` consecutive calls on tensors of `bytes` bytes, and prints the result. */
async function timeAndPrint(operation: Operation, bytes: number, count: number): Promise<void> {
  using fullBuffer = mosaic.ones(ctx, [bytes / 4]);
  using receiveBuffer = mosaic.ones(ctx, [bytes / 4]);
  using shardBuffer = mosaic.ones(ctx, [bytes / 4 / world.size]);
  const postByOperation: Readonly<Record<Operation, () => Work>> = {
    sendRecv: () => {
      const rightRank = (world.rank + 1) % world.size;
      const leftRank = (world.rank + world.size - 1) % world.size;
      return world.sendRecv([
        { tensor: fullBuffer, to: rightRank },
        { tensor: receiveBuffer, from: leftRank },
      ]);
    },
    allGather: () => world.allGather(fullBuffer, shardBuffer),
    reduceScatter: () => world.reduceScatter(shardBuffer, fullBuffer),
    allReduce: () => world.allReduce(fullBuffer, "mean"),
    allToAll: () => world.allToAll(receiveBuffer, fullBuffer),
  };
  print({ operation, bytes, seconds: await measureMinSeconds(() => postByOperation[operation]().wait(), count) });
}

/** Returns the seconds per call of `count` consecutive calls, the minimum of several repetitions after a warm-up. */
async function measureMinSeconds(runCall: () => void, count: number): Promise<number> {
  let minimum = Number.POSITIVE_INFINITY;
  for (let i = 0; i <= repetitions; i++) {
    world.barrier().wait();
    await ctx.device.stream.synchronize();
    const startTime = now();
    for (let j = 0; j < count; j++) runCall();
    await ctx.device.stream.synchronize();
    if (i > 0) minimum = Math.min(minimum, (now() - startTime) / count);
  }
  return minimum;
}

function print(timing: Timing): void {
  if (ctx.rank === 0) console.log(JSON.stringify(timing));
}
