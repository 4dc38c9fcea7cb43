// Program of each rank: `mosaic-run --nproc-per-node 4 rank.js --task planted`. The launcher sets RANK and WORLD_SIZE.
import * as mosaic from "@mosaic/attention";
import { parseSettings } from "./settings.ts";
import { train } from "./run.ts";
import type { StepReport } from "./training.ts";

const ranks = process.env["WORLD_SIZE"] ?? "1";
const settings = parseSettings([...process.argv.slice(2), "--ranks", ranks]);
await using ctx = await mosaic.init({ seed: settings.seed });
const trainer = await train(ctx, settings, (step, loss) => {
  const report: StepReport = { step, totalSteps: settings.steps, loss: Number(loss.toFixed(4)) };
  if (ctx.rank === 0) console.log(JSON.stringify(report));
});
trainer[Symbol.dispose]();
