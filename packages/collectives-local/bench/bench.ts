// Measures latency and bandwidth of local collectives, in one process and between two. Prints one JSON line per case.
//   npm run build && npm run bench
import { fork } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { ProcessGroup } from "@mosaic/core";
import { local, world } from "../dist/index.js";
import { TestDevice } from "../test/device.ts";

const elementsPerBuffer = 1 << 20;
const rounds = 7;

interface Rank {
  readonly group: ProcessGroup;
  readonly device: TestDevice;
}

/** Posts `operationCount` operations on these ranks. Returns the minimum seconds per operation of several rounds. */
async function measureSecondsPerOperation(
  ranks: readonly Rank[],
  operationCount: number,
  post: (rank: Rank) => void,
): Promise<number> {
  let bestSeconds = Number.POSITIVE_INFINITY;
  for (let round = 0; round < rounds; round++) {
    const start = performance.now();
    for (let i = 0; i < operationCount; i++) for (const rank of ranks) post(rank);
    await Promise.all(ranks.map(({ device }) => device.stream.synchronize()));
    bestSeconds = Math.min(bestSeconds, (performance.now() - start) / 1000 / operationCount);
  }
  return bestSeconds;
}

async function measureCollectives(ranks: readonly Rank[], description: string): Promise<void> {
  const report = (name: string, result: object) => {
    if (ranks[0]!.group.rank === 0)
      process.stdout.write(`${JSON.stringify({ case: `${description}.${name}`, ...result })}\n`);
  };
  const buffers = new Map(
    ranks.map(({ device }) => [
      device,
      [device.empty([elementsPerBuffer], "float32"), device.empty([elementsPerBuffer], "float32")],
    ]),
  );
  for (const { device } of ranks) device.write(buffers.get(device)![0]!, new Float32Array(elementsPerBuffer));
  const smallBuffers = new Map(ranks.map(({ device }) => [device, device.empty([2], "float32")]));

  const allReduceSeconds = await measureSecondsPerOperation(ranks, 1000, ({ group, device }) =>
    group.allReduce(smallBuffers.get(device)!, "max").wait(),
  );
  report("allReduce.8B", { microseconds: allReduceSeconds * 1e6 });
  const bufferBytes = 4 * elementsPerBuffer;
  const oneWaySeconds = await measureSecondsPerOperation(ranks, 40, ({ group, device }) => {
    const [sendBuffer, receiveBuffer] = buffers.get(device)!;
    group.sendRecv([group.rank === 0 ? { tensor: sendBuffer!, to: 1 } : { tensor: receiveBuffer!, from: 0 }]).wait();
  });
  report("sendRecv.4MiB.oneWay", { gigabytesPerSecond: bufferBytes / oneWaySeconds / 1e9 });
  const exchangeSeconds = await measureSecondsPerOperation(ranks, 40, ({ group, device }) => {
    const [sendBuffer, receiveBuffer] = buffers.get(device)!;
    const peer = 1 - group.rank;
    group
      .sendRecv([
        { tensor: sendBuffer!, to: peer },
        { tensor: receiveBuffer!, from: peer },
      ])
      .wait();
  });
  report("sendRecv.4MiB.exchange", { gigabytesPerSecondEachWay: bufferBytes / exchangeSeconds / 1e9 });
  const largeAllReduceSeconds = await measureSecondsPerOperation(ranks, 40, ({ group, device }) =>
    group.allReduce(buffers.get(device)![0]!, "max").wait(),
  );
  report("allReduce.4MiB", { milliseconds: largeAllReduceSeconds * 1e3 });
}

if (process.env.RANK === undefined) {
  const devices = [new TestDevice(), new TestDevice()];
  const contexts = await world(2, { device: (rank) => devices[rank]! });
  await measureCollectives(
    contexts.map((context, rank) => ({ group: context.world, device: devices[rank]! })),
    "oneProcess",
  );
  await Promise.all(contexts.map((context) => context.close()));
  const env = { WORLD_SIZE: "2", MASTER_PORT: "29500", MOSAIC_RUN_ID: `bench-${process.pid}` };
  for (const rank of ["0", "1"]) fork(fileURLToPath(import.meta.url), { env: { ...process.env, ...env, RANK: rank } });
} else {
  const device = new TestDevice();
  const group = await local().connect({ device, rank: Number(process.env.RANK), size: 2 });
  await measureCollectives([{ group, device }], "twoProcesses");
  await group[Symbol.asyncDispose]();
}
