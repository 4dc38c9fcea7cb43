// One rank of a training run that saves every third step. The last rank is killed once, at the start of a step.
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ring } from "@mosaic/backend-ring";
import { local } from "@mosaic/collectives-local";
import { init } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { AdamW, loadCheckpoint, saveCheckpoint } from "../../src/index.ts";
import { Model, trainStep } from "../reference/model.ts";

const [directory, steps, killedStep] = [process.argv[2]!, Number(process.argv[3]), Number(process.argv[4])];
const initParts = { device: cpu({ threads: 1 }), collectives: local(), backends: [ring()], seed: 3 };
await using ctx = await init({ ...initParts, mesh: { sp: Number(process.env.WORLD_SIZE) }, timeout: 20 });
using model = new Model(ctx);
using optimizer = new AdamW(model, { lr: 2e-2 });
const path = join(directory, "training.safetensors");
const losses: number[] = [];
if (existsSync(path)) losses.push(...((await loadCheckpoint(ctx, path, { model, optimizer })).data as number[]));
while (optimizer.steps < steps) {
  const shouldDie = process.env.MOSAIC_ATTEMPT === "0" && ctx.rank === ctx.size - 1 && optimizer.steps === killedStep;
  if (shouldDie) process.kill(process.pid, "SIGKILL");
  losses.push(await trainStep(ctx, { model, optimizer }));
  if (optimizer.steps % 3 === 0) await saveCheckpoint(ctx, path, { model, optimizer, data: losses });
}
if (ctx.rank === 0) writeFileSync(join(directory, "losses.json"), JSON.stringify(losses));
