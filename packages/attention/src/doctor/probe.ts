import { writeSync } from "node:fs";
import { type Context, init, matmul, type MosaicError, ones, type Tensor } from "@mosaic/core";
import { cpu, features } from "@mosaic/kernels-cpu";
import { importCuda, importNccl } from "../device-factories.ts";
import { calibrate, type Profile } from "@mosaic/planner";
import { world } from "../init.ts";
import { listRoundRobinPairs } from "./hosts/round-robin.ts";
import type { MeasuredLink } from "./hosts/run.ts";
import type { ProbeResult, ProbeValues } from "./system.ts";

/** The probes of one machine, named as in `ProbeValues`, and the probes with arguments that `--hosts` starts. */
const probes: Probes = {
  cpu: async () => features(),
  ranks: allReduceTwoRanks,
  cuda: async () => (await importCuda()).cudaSystem() as ProbeValues["cuda"],
  gpus: matmulOnGpus,
  nccl: async () => (await importNccl()).ncclSystem() as ProbeValues["nccl"],
  ucx: async () => (await import("@mosaic/collectives-ucx")).ucxSystem(),
  ucxLinks: measureUcxLinks,
  profile: (ranks, threads) => calibrateHost(Number(ranks), Number(threads)),
};

type Probes = { readonly [Name in keyof ProbeValues]: () => Promise<ProbeValues[Name]> } & {
  ucxLinks(index: string, count: string, bandwidth: string, ports?: string): Promise<readonly (MeasuredLink | null)[]>;
  profile(ranks: string, threads: string): Promise<Profile>;
};

async function allReduceTwoRanks(): Promise<number> {
  const contexts = await world(2, { device: () => cpu({ threads: 1 }), timeout: 30 });
  const sums = contexts.map(async (ctx) => {
    using a = ones(ctx, [2, 6]);
    using b = ones(ctx, [6, 2]);
    using product = matmul(a, b);
    ctx.world.allReduce(product).wait();
    return (await product.read())[0]!;
  });
  const [sum] = await Promise.all(sums);
  await Promise.all(contexts.map((ctx) => ctx.close()));
  return sum!;
}

async function matmulOnGpus(): Promise<readonly number[]> {
  const { cuda, cudaSystem } = await importCuda();
  const products: number[] = [];
  for (const index of cudaSystem().gpus.keys()) {
    using device = cuda({ index });
    using a = ones(device, [2, 6]);
    using b = ones(device, [6, 2]);
    using product = matmul(a, b);
    products.push((await product.read())[0]!);
  }
  return products;
}

const PING_COUNT = 100;
const LARGE_MESSAGE_BYTES = 2 ** 22;
/** Target duration of a bandwidth measurement, in seconds. */
const TARGET_TRANSFER_SECONDS = 0.3;

/** Measures the UCX links from this host to all other hosts. All hosts run this function at the same time. */
async function measureUcxLinks(...[index, count, bandwidth, ports]: Parameters<Probes["ucxLinks"]>) {
  const { ucx } = await import("@mosaic/collectives-ucx");
  const [rank, worldSize] = [Number(index), Number(count)];
  const collectives = ucx({ name: "mosaic-doctor", connectTimeout: 20, ...(ports && { ports }) });
  const options = { device: cpu({ threads: 1 }), collectives, rank, worldSize, timeout: 30 };
  await using ctx = await init(options);
  const numMessages = Math.max(
    1,
    Math.min(32, Math.round((Number(bandwidth) * TARGET_TRANSFER_SECONDS) / LARGE_MESSAGE_BYTES)),
  );
  const links: (MeasuredLink | null)[] = Array.from({ length: worldSize }, () => null);
  for (const peers of listRoundRobinPairs(worldSize)) {
    const peer = peers[rank]!;
    for (const sender of peer < 0 ? [] : [Math.min(rank, peer), Math.max(rank, peer)]) {
      const measuredLink = await measureUcxLink(ctx, { peer, isSender: sender === rank, numMessages });
      if (sender === rank) links[peer] = measuredLink;
    }
    ctx.world.barrier().wait();
    await ctx.device.stream.synchronize();
  }
  return links;
}

interface UcxTransfer {
  readonly peer: number;
  readonly isSender: boolean;
  readonly numMessages: number;
}

/** Measures one link with ping-pongs, then with large messages in one direction and a reply. Both sides call it. */
async function measureUcxLink(ctx: Context, { peer, isSender, numMessages }: UcxTransfer): Promise<MeasuredLink> {
  using smallMessage = ones(ctx, [1]);
  using largeMessage = ones(ctx, [LARGE_MESSAGE_BYTES / 4]);
  const send = (tensor: Tensor): void => ctx.world.sendRecv([{ tensor, to: peer }]).wait();
  const receive = (tensor: Tensor): void => ctx.world.sendRecv([{ tensor, from: peer }]).wait();
  const [sendOrReceive, receiveOrSend] = isSender ? [send, receive] : [receive, send];
  const measureSeconds = async (post: () => void): Promise<number> => {
    const startTime = performance.now();
    post();
    await ctx.device.stream.synchronize();
    return (performance.now() - startTime) / 1000;
  };
  const runPingPong = (): void => {
    for (let i = 0; i < PING_COUNT; i++) {
      sendOrReceive(smallMessage);
      receiveOrSend(smallMessage);
    }
  };
  const stream = (): void => {
    for (let i = 0; i < numMessages; i++) sendOrReceive(largeMessage);
    receiveOrSend(smallMessage);
  };
  // The first run of each is warm-up: it connects and faults pages in.
  await measureSeconds(runPingPong);
  const latency = (await measureSeconds(runPingPong)) / PING_COUNT / 2;
  await measureSeconds(stream);
  return { latency, bandwidth: (numMessages * LARGE_MESSAGE_BYTES) / (await measureSeconds(stream)) };
}

/** Calibrates the planner's profile of this host with the host's number of ranks in the job. */
async function calibrateHost(ranks: number, threads: number): Promise<Profile> {
  const contexts = await world(Math.max(2, ranks), { device: () => cpu({ threads }), timeout: 60 });
  const profile = await calibrate({ contexts, threads, repetitions: 3 });
  await Promise.all(contexts.map((ctx) => ctx.close()));
  return profile;
}

// Runs one probe in a separate process: `node doctor-probe.js <name>` writes its result as JSON to file descriptor 3,
// which is separate from any output of native code.

const [name, ...args] = process.argv.slice(2);
const probe = probes[name as keyof Probes] as (...args: readonly string[]) => Promise<unknown>;
writeSync(3, JSON.stringify(await writeResult(() => probe(...args))));
// Threads that a driver keeps alive must not keep this process alive.
process.exit();

async function writeResult(run: () => Promise<unknown>): Promise<ProbeResult<unknown>> {
  try {
    return { value: await run() };
  } catch (error) {
    const { name, message, details } = error as Error & Partial<MosaicError>;
    const remedy = details?.remedy;
    if (remedy === undefined) return { error: { name, message } };
    return { error: { name, message: message.replace(`; ${remedy}`, ""), remedy } };
  }
}
