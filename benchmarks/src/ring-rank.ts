// One process of a ring case: a rank with one thread or, as the last, a single device with as many threads as there are
// ranks.
import * as mosaic from "@mosaic/attention";
import { fmaPeak } from "@mosaic/attention/planner";
import { connectStore, type Store } from "@mosaic/launcher";
import { AttentionRun } from "./attention-problem.ts";
import type { RingJob, RingTiming } from "./ring.ts";

const { problem, ranks, turns } = JSON.parse(process.argv[2]!) as RingJob;
const rank = Number(process.env["RANK"]);
const isSingleProcess = rank === ranks;

await using store = await connectStore();
await using ctx = isSingleProcess
  ? await mosaic.init({ device: mosaic.cpu({ threads: ranks }), rank: 0, worldSize: 1 })
  : await mosaic.init({
      device: mosaic.cpu({ threads: 1 }),
      collectives: mosaic.localCollectives({ name: process.env["MOSAIC_RUN_ID"]! }),
      rank,
      worldSize: ranks,
    });
using run = new AttentionRun(ctx, problem, isSingleProcess ? mosaic.local() : mosaic.ring());

// Turn 0 is warm-up and is not reported.
for (let turn = 0; turn <= turns; turn++) {
  const timing = isSingleProcess ? await runSingleProcess(store, turn) : await runRing(store, turn);
  if (turn > 0) console.log(JSON.stringify(timing));
}

/** Runs the ring's part of a turn. Meanwhile the single-device process sleeps in its event loop. */
async function runRing(store: Store, turn: number): Promise<RingTiming> {
  if (turn > 0) await store.wait([`alone ${turn - 1}`]);
  const timing = await run.runOnce();
  await store.set(`ring ${turn} ${rank}`, "");
  return timing;
}

async function runSingleProcess(store: Store, turn: number): Promise<RingTiming> {
  await store.wait(Array.from({ length: ranks }, (_, rank) => `ring ${turn} ${rank}`));
  const peakGflops = fmaPeak(ranks);
  const timing = await run.runOnce();
  await store.set(`alone ${turn}`, "");
  return { ...timing, peakGflops };
}
