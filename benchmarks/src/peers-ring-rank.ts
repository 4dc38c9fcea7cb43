// One process of a comparison with PyTorch's ring: a rank with one thread or, as the last, the process that sends
// requests to the baseline.
import { fileURLToPath } from "node:url";
import * as mosaic from "@mosaic/attention";
import { connectStore, type Store } from "@mosaic/launcher";
import { BaselineProcess } from "./peers.ts";
import { AttentionRun } from "./attention-problem.ts";
import type { BaselineRingJob } from "./peers-ring.ts";
import { waitUntilIdle } from "./case.ts";
import type { RingTiming } from "./ring.ts";

const { problem, ranks, turns, python } = JSON.parse(process.argv[2]!) as BaselineRingJob;
const rank = Number(process.env["RANK"]);

await using store = await connectStore();
await (rank === ranks ? runBaseline(store) : runMosaic(store));

/** Prints a timing. Turn 0 is warm-up and is not reported. */
function printTiming(turn: number, timing: RingTiming): void {
  if (turn > 0) console.log(JSON.stringify(timing));
}

async function runMosaic(sharedStore: Store): Promise<void> {
  const name = process.env["MOSAIC_RUN_ID"]!;
  const [device, collectives] = [mosaic.cpu({ threads: 1 }), mosaic.localCollectives({ name })];
  await using ctx = await mosaic.init({ device, collectives, rank, worldSize: ranks });
  using run = new AttentionRun(ctx, problem, mosaic.ring());
  for (let turn = 0; turn <= turns; turn++) {
    if (turn > 0) await sharedStore.wait([`peer ${turn - 1}`]);
    await waitUntilIdle();
    printTiming(turn, await run.runOnce());
    await sharedStore.set(`ring ${turn} ${rank}`, "");
  }
}

async function runBaseline(sharedStore: Store): Promise<void> {
  const script = fileURLToPath(new URL("../peers/ring.py", import.meta.url));
  using baseline = new BaselineProcess([python, script, "--ranks", String(ranks)], 600);
  await baseline.request({ op: "prepare", problem });
  for (let turn = 0; turn <= turns; turn++) {
    await sharedStore.wait(Array.from({ length: ranks }, (_, otherRank) => `ring ${turn} ${otherRank}`));
    await waitUntilIdle();
    printTiming(turn, await baseline.request<RingTiming>({ op: "run" }));
    await sharedStore.set(`peer ${turn}`, "");
  }
}
