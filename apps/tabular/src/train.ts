// Trains on the prior: each of the processes that `mosaic-run` starts runs this. Ranks share the tables of a step.
//
//   npx mosaic-run --nproc-per-node 2 dist/train.js [--steps 2500] [--tables 16] [--seed 0] [--out weights.safetensors]
import { parseArgs } from "node:util";
import { init } from "@mosaic/attention";
import { TabularModel, usual } from "./model.ts";
import { Trainer, usualTraining } from "./training.ts";
import { saveModel, shipped } from "./weights.ts";

const { values } = parseArgs({
  options: {
    steps: { type: "string", default: String(usualTraining.steps) },
    tables: { type: "string", default: String(usualTraining.tables) },
    seed: { type: "string", default: String(usualTraining.seed) },
    out: { type: "string", default: shipped },
  },
});
const options = {
  ...usualTraining,
  steps: whole("--steps", values.steps),
  tables: whole("--tables", values.tables),
  seed: whole("--seed", values.seed),
};

await using ctx = await init({ spSize: 1, seed: options.seed });
using model = new TabularModel(ctx, usual);
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
trainer.optimizer.eval();
if (ctx.rank === 0) await saveModel(model, values.out);

function whole(name: string, text: string): number {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value >= 0) return value;
  throw new Error(`${name}: expected a whole number, received "${text}"`);
}
