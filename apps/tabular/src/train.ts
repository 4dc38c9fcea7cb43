// Trains on the prior. Program of each process that `mosaic-run` starts. Ranks share the tables of a step.
//
//   npx mosaic-run --nproc-per-node 2 dist/train.js [--steps 6000] [--cells 8192] [--seed 0] [--out weights.safetensors]
//   npx mosaic-run --nproc-per-node 2 dist/train.js --checkpoint training.safetensors    # resumes if started again
//   npx mosaic-run --nproc-per-node 2 dist/train.js --refine weights.safetensors         # continues from these weights
import { existsSync } from "node:fs";
import { parseArgs } from "node:util";
import { init } from "@mosaic/attention";
import { TabularModel, defaultOptions } from "./model.ts";
import { fineTuningOptions, Trainer, defaultTrainingOptions } from "./training.ts";
import { parseInteger } from "./arguments.ts";
import { defaultWeightsPath, loadModel, saveModel } from "./weights.ts";

const { values } = parseArgs({
  options: {
    refine: { type: "string" },
    checkpoint: { type: "string" },
    steps: { type: "string" },
    cells: { type: "string" },
    seed: { type: "string" },
    out: { type: "string", default: defaultWeightsPath },
  },
});
const initialOptions = values.refine === undefined ? defaultTrainingOptions : fineTuningOptions;
const options = {
  ...initialOptions,
  steps: parseInteger("--steps", values.steps ?? String(initialOptions.steps), [1, Number.MAX_SAFE_INTEGER]),
  cells: parseInteger("--cells", values.cells ?? String(initialOptions.cells), [1, Number.MAX_SAFE_INTEGER]),
  seed: parseInteger("--seed", values.seed ?? String(initialOptions.seed), [0, 2 ** 32 - 1]),
};
/** Number of steps between writes of the weights and the checkpoint. */
const STEPS_PER_CHECKPOINT = 250;

await using ctx = await init({ spSize: 1, seed: options.seed });
using model = values.refine === undefined ? new TabularModel(ctx, defaultOptions) : await loadModel(ctx, values.refine);
using trainer = new Trainer(ctx, model, options);
const { checkpoint } = values;
if (checkpoint !== undefined && existsSync(checkpoint)) await trainer.load(checkpoint);
const startTime = performance.now();
let losses: number[] = [];
while (trainer.steps < options.steps) {
  losses.push(await trainer.step(trainer.steps + 1));
  const step = trainer.steps;
  const isLast = step === options.steps;
  if (step % 50 === 0 || isLast) {
    const loss = Number((losses.reduce((a, b) => a + b, 0) / losses.length).toFixed(4));
    const seconds = Math.round((performance.now() - startTime) / 1000);
    if (ctx.rank === 0) console.log(JSON.stringify({ step, loss, seconds }));
    losses = [];
  }
  if (step % STEPS_PER_CHECKPOINT !== 0 && !isLast) continue;
  await trainer.withAveragedWeights(async () => {
    if (ctx.rank === 0) await saveModel(model, values.out);
  });
  if (checkpoint !== undefined) await trainer.save(checkpoint);
}
