// Trains on the prior: each of the processes that `mosaic-run` starts runs this. Ranks share the tables of a step.
//
//   npx mosaic-run --nproc-per-node 2 dist/train.js [--steps 2500] [--tables 16] [--seed 0] [--out weights.safetensors]
//   npx mosaic-run --nproc-per-node 2 dist/train.js --refine weights.safetensors   # goes on from there
import { parseArgs } from "node:util";
import { init } from "@mosaic/attention";
import { TabularModel, defaultOptions } from "./model.ts";
import { fineTuningOptions, Trainer, defaultTraining } from "./training.ts";
import { defaultWeights, loadModel, parseInteger, saveModel } from "./predict.ts";

const { values } = parseArgs({
  options: {
    refine: { type: "string" },
    steps: { type: "string" },
    tables: { type: "string" },
    seed: { type: "string" },
    out: { type: "string", default: defaultWeights },
  },
});
// Each rank has a table at least.
const ranks = Number(process.env["WORLD_SIZE"] ?? 1);
const initialOptions = values.refine === undefined ? defaultTraining : fineTuningOptions;
const options = {
  ...initialOptions,
  steps: parseInteger("--steps", values.steps ?? String(initialOptions.steps), [1, Number.MAX_SAFE_INTEGER]),
  tables: parseInteger("--tables", values.tables ?? String(initialOptions.tables), [ranks, Number.MAX_SAFE_INTEGER]),
  seed: parseInteger("--seed", values.seed ?? String(initialOptions.seed), [0, 2 ** 32 - 1]),
};

await using ctx = await init({ spSize: 1, seed: options.seed });
using model = values.refine === undefined ? new TabularModel(ctx, defaultOptions) : await loadModel(ctx, values.refine);
using trainer = new Trainer(ctx, model, options);
const begin = performance.now();
let sum = 0;
for (let step = 1; step <= options.steps; step++) {
  sum += await trainer.step(step);
  if (step % 50 !== 0 && step !== options.steps) continue;
  const seconds = (performance.now() - begin) / 1000;
  const count = step % 50 || 50;
  if (ctx.rank === 0) {
    console.log(JSON.stringify({ step, loss: Number((sum / count).toFixed(4)), seconds: Math.round(seconds) }));
  }
  sum = 0;
}
trainer.loadAverages();
if (ctx.rank === 0) await saveModel(model, values.out);
