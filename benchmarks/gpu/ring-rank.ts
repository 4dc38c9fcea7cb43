// One process of a ring case. All open the same card; rank 0 also takes the turns alone.
import * as mosaic from "@mosaic/attention";
import { cuda } from "@mosaic/kernels-cuda";
import { connectStore } from "@mosaic/launcher";
import { AttentionRun } from "../src/attention-problem.ts";
import { type RingJob, type RingTiming, type RunMode, runModes } from "./ring.ts";

const { problem, ranks, turns, device } = JSON.parse(process.argv[2]!) as RingJob;
const rank = Number(process.env["RANK"]);

// NCCL refuses two processes on one card, unless they seem to be of different hosts. Then it goes through sockets: give it some.
process.env["NCCL_HOSTID"] ??= `mosaic-bench-${rank}`;
process.env["NCCL_SOCKET_IFNAME"] ??= "lo";
process.env["NCCL_SOCKET_NTHREADS"] ??= "4";
process.env["NCCL_NSOCKS_PERTHREAD"] ??= "4";

const openDevice = (): mosaic.Device => (device === "cuda" ? cuda({ index: 0 }) : mosaic.cpu({ threads: 1 }));
await using store = await connectStore();
await using shardedCtx = await mosaic.init({ device: openDevice(), collectives: device === "cuda" ? "nccl" : "local" });
await using singleCtx = await mosaic.init({ device: openDevice(), rank: 0, worldSize: 1 });

const runs: Readonly<Record<RunMode, AttentionRun | undefined>> = {
  ring: new AttentionRun(shardedCtx, problem, mosaic.ring()),
  apart: new AttentionRun(singleCtx, { ...problem, numHeads: problem.numHeads / ranks }, mosaic.local()),
  alone: rank === 0 ? new AttentionRun(singleCtx, problem, mosaic.local()) : undefined,
};

// Turn 0 warms up and is not reported.
for (let turn = 0; turn <= turns; turn++) {
  for (const runMode of runModes) {
    await barrier(`${runMode} ${turn}`);
    const timing = await runs[runMode]?.runOnce();
    if (turn > 0 && timing) console.log(JSON.stringify({ runMode, ...timing } satisfies RingTiming));
  }
}
for (const run of Object.values(runs)) run?.[Symbol.dispose]();

/** Waits for the others in the store: a barrier of NCCL would keep the card busy meanwhile. */
async function barrier(barrierName: string): Promise<void> {
  await store.set(`${barrierName} ${rank}`, "");
  await store.wait(Array.from({ length: ranks }, (_, peerRank) => `${barrierName} ${peerRank}`));
}
