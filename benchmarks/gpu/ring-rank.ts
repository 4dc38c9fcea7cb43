// One process of a ring case. All processes open the same GPU. Rank 0 also runs the mode `alone`.
import * as mosaic from "@mosaic/attention";
import { cuda } from "@mosaic/kernels-cuda";
import { connectStore } from "@mosaic/launcher";
import { AttentionRun } from "../src/attention-problem.ts";
import { type RingJob, type RingTiming, type RunMode, runModes } from "./ring.ts";

const { problem, ranks, turns, device } = JSON.parse(process.argv[2]!) as RingJob;
const rank = Number(process.env["RANK"]);

// NCCL refuses two processes on one GPU unless they appear to be on different hosts. It then communicates through
// sockets, so several are configured.
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

// Turn 0 is warm-up and is not reported.
for (let turn = 0; turn <= turns; turn++) {
  for (const runMode of runModes) {
    await barrier(`${runMode} ${turn}`);
    const timing = await runs[runMode]?.runOnce();
    if (turn > 0 && timing) console.log(JSON.stringify({ runMode, ...timing } satisfies RingTiming));
  }
}
for (const run of Object.values(runs)) run?.[Symbol.dispose]();

/** Waits for the other ranks through the store, because an NCCL barrier would keep the GPU busy. */
async function barrier(barrierName: string): Promise<void> {
  await store.set(`${barrierName} ${rank}`, "");
  await store.wait(Array.from({ length: ranks }, (_, peerRank) => `${barrierName} ${peerRank}`));
}
