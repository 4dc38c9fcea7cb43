// One rank of collectives.mjs. Rank 0 prints, for each operation and number of bytes of the whole tensor, the median
// seconds of the slowest rank.
import { cpu, init } from "@mosaic/attention";
import { empty, full } from "@mosaic/attention/core";
import { ucx } from "@mosaic/collectives-ucx";

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];
const sizes = JSON.parse(process.argv[2]);
const ctx = await init({ device: cpu({ threads: 1 }), collectives: ucx({ network: "eth0" }) });
const { rank, size, world, device } = ctx;
const hostGroup = await world.split(world.hosts[rank], "host");
// Ranks at the same position of each host.
const acrossHosts = await world.split(hostGroup.rank, "across");
const numRanksOn = (host) => world.hosts.filter((each) => each === host).length;
/** reduceScatter in two levels is timed only if all hosts have the same number of ranks. */
const areHostsEqual = world.hosts.every((host) => numRanksOn(host) === numRanksOn(world.hosts[0]));

/** Returns the rounds of a size: many for small ones, whose times vary. */
const roundsOf = (bytes) => (bytes >= 2 ** 20 ? 5 : 60);

async function time(post, bytes) {
  const seconds = [];
  for (let round = 0; round <= roundsOf(bytes); round++) {
    world.barrier().wait();
    await device.stream.synchronize();
    const startTime = performance.now();
    post().wait();
    await device.stream.synchronize();
    seconds.push((performance.now() - startTime) / 1e3);
  }
  // The first is warm-up. A round takes as long as its slowest rank.
  const slowest = full(ctx, [seconds.length], 0);
  device.write(slowest, seconds);
  world.allReduce(slowest, "max").wait();
  return median([...(await slowest.read())].slice(1));
}

const result = {};
for (const bytes of sizes) {
  const share = Math.floor(bytes / 4 / size);
  const [whole, part] = [full(ctx, [share * size], rank + 1), full(ctx, [share], rank + 1)];
  const [gathered, reduced] = [empty(ctx, [share * size]), empty(ctx, [share])];
  result[`allGather ${bytes}`] = await time(() => world.allGather(gathered, part), bytes);
  result[`broadcast ${bytes}`] = await time(() => world.broadcast(gathered, 0), bytes);
  result[`reduceScatter ${bytes}`] = await time(() => world.reduceScatter(reduced, whole), bytes);
  if (areHostsEqual) {
    // Sums within each host first, which rounds differently.
    const partial = empty(ctx, [share * acrossHosts.size]);
    result[`in two levels ${bytes}`] = await time(() => {
      hostGroup.reduceScatter(partial, whole).wait();
      return acrossHosts.reduceScatter(reduced, partial);
    }, bytes);
  }
  result[`allReduce ${bytes}`] = await time(() => world.allReduce(whole, "max"), bytes);
}
if (rank === 0) console.log(JSON.stringify(result));
await ctx.close();
