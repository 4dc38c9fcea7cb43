// One rank of main.mjs: batches of messages in both directions between two hosts, then a barrier at which rank 1 is
// late. Rank 0 prints the seconds of each batch, and the share of a core that its process used while it waited.
import { setTimeout as sleep } from "node:timers/promises";
import { cpu, init } from "@mosaic/attention";
import { empty, full } from "@mosaic/attention/core";
import { ucx } from "@mosaic/collectives-ucx";

const { messages, bytes, rounds } = JSON.parse(process.argv[2]);
const WAIT_MS = 5000;

const ctx = await init({ device: cpu({ threads: 1 }), collectives: ucx({ network: "eth0" }) });
const { rank, world, device } = ctx;
const length = bytes / 4;
const transfers = Array.from({ length: messages }, () => [
  { tensor: full(ctx, [length], 1), to: 1 - rank },
  { tensor: empty(ctx, [length]), from: 1 - rank },
]).flat();

const batchSeconds = [];
for (let round = 0; round < rounds; round++) {
  world.barrier().wait();
  await device.stream.synchronize();
  const startTime = performance.now();
  world.sendRecv(transfers).wait();
  await device.stream.synchronize();
  batchSeconds.push((performance.now() - startTime) / 1e3);
}

world.barrier().wait();
await device.stream.synchronize();
const cpuUsageBefore = process.cpuUsage();
const waitStartTime = performance.now();
if (rank === 1) await sleep(WAIT_MS);
world.barrier().wait();
await device.stream.synchronize();
const { user, system } = process.cpuUsage(cpuUsageBefore);
const waitingCpuShare = (user + system) / 1e3 / (performance.now() - waitStartTime);
if (rank === 0) console.log(JSON.stringify({ batches: batchSeconds, waiting: waitingCpuShare }));
await ctx.close();
