// Trains on the prior. Program of each process that `mosaic-run` starts. Ranks share the tables of a step.
import { existsSync } from "node:fs";
import { init } from "@mosaic/attention";
import { TabularModel, defaultOptions } from "./model.ts";
import { fineTuningOptions, Trainer, defaultTrainingOptions } from "./training.ts";
import { parseCommandLine, parseInteger } from "./arguments.ts";
import { defaultWeightsPath, loadModel, saveModel } from "./weights.ts";

const [initial, refined] = [defaultTrainingOptions, fineTuningOptions];
const usage = `Trains a tabular model on synthetic tables.

  npx mosaic-run --nproc-per-node 2 dist/train.js [options]

  --refine FILE       continue from these weights, on larger tables (random weights)
  --steps N           number of training steps (${initial.steps}; with --refine ${refined.steps})
  --cells N           number of cells in a step (${initial.cells}; with --refine ${refined.cells})
  --seed N            random seed (${initial.seed}; with --refine ${refined.seed})
  --out FILE          file of the weights (weights.safetensors of this package)
  --checkpoint FILE   checkpoint, from which training resumes if it exists (none)
  -h, --help          shows this help`;
const { values, options } = parseCommandLine(
  usage,
  {
    refine: { type: "string" },
    checkpoint: { type: "string" },
    steps: { type: "string" },
    cells: { type: "string" },
    seed: { type: "string" },
    out: { type: "string", default: defaultWeightsPath },
  },
  (values) => {
    const defaults = values.refine === undefined ? initial : refined;
    const steps = parseInteger("--steps", values.steps ?? String(defaults.steps), [1, Number.MAX_SAFE_INTEGER]);
    const cells = parseInteger("--cells", values.cells ?? String(defaults.cells), [1, Number.MAX_SAFE_INTEGER]);
    const seed = parseInteger("--seed", values.seed ?? String(defaults.seed), [0, 2 ** 32 - 1]);
    return { values, options: { ...defaults, steps, cells, seed } };
  },
);
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
