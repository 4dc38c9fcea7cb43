// One rank of a training run whose hosts have separate directories and save every third step. On the first attempt, a
// host may fail once: HOST:dies:STEP and HOST:hangs:STEP before that step, HOST:dies-unpublished:STEP and
// HOST:hangs-unpublished:STEP during the save, when its copy is complete but has not replaced the previous one.
import fs, { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { syncBuiltinESMExports } from "node:module";
import { join } from "node:path";
import { ring } from "@mosaic/backend-ring";
import { local } from "@mosaic/collectives-local";
import { ucx } from "@mosaic/collectives-ucx";
import { init } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { AdamW, findCheckpoint, loadCheckpoint, saveCheckpoint } from "../../src/index.ts";
import { Model, trainStep } from "../reference/model.ts";

const [root = "", steps, ...faults] = process.argv.slice(2);
const { MOSAIC_ATTEMPT, MOSAIC_TEST_NETWORK: network, RANK, WORLD_SIZE } = process.env;
const host = process.env.MOSAIC_HOST ?? `n${RANK}`;
const path = join(root, host, "training.safetensors");
await mkdir(join(root, host), { recursive: true });

await using ctx = await init({
  ...{ device: cpu({ threads: 1 }), backends: [ring()], seed: 3, mesh: { sp: Number(WORLD_SIZE) }, timeout: 20 },
  collectives: network ? ucx({ network }) : local(),
});
using model = new Model(ctx);
using optimizer = new AdamW(model, { lr: 2e-2 });

async function failIfDue(faultSuffix: "" | "-unpublished"): Promise<void> {
  const isDue = (kind: string): boolean => faults.includes(`${host}:${kind}${faultSuffix}:${optimizer.steps}`);
  if (MOSAIC_ATTEMPT !== "0") return;
  // With several hosts, the whole host fails, its launcher first.
  if (isDue("dies") && network) process.kill(process.ppid, "SIGKILL");
  if (isDue("dies")) process.kill(process.pid, "SIGKILL");
  if (!isDue("hangs")) return;
  console.log("hangs");
  await new Promise(() => setInterval(() => {}, 1000));
}

/** Returns whether another host has replaced its copy by that of this step. */
async function isPublishedElsewhere(): Promise<boolean> {
  for (const otherHost of await readdir(root)) {
    if (otherHost === host) continue;
    const text = await readFile(join(root, otherHost, "training.safetensors"), "latin1").catch(() => "");
    if (text.includes(`\\"steps\\":${optimizer.steps}`)) return true;
  }
  return false;
}

const { rename } = fs;
fs.rename = async (sourcePath, targetPath) => {
  const isDue = faults.some(
    (fault) => fault.startsWith(`${host}:`) && fault.endsWith(`-unpublished:${optimizer.steps}`),
  );
  if (isDue && MOSAIC_ATTEMPT === "0") while (!(await isPublishedElsewhere()));
  await failIfDue("-unpublished");
  await rename(sourcePath, targetPath);
};
syncBuiltinESMExports();

const options = { copies: "perHost", host } as const;
const losses: number[] = [];
const foundCheckpoint = await findCheckpoint(ctx, path, options);
console.log(`attempt ${MOSAIC_ATTEMPT}: ${JSON.stringify(foundCheckpoint ?? null)}`);
if (foundCheckpoint)
  losses.push(...((await loadCheckpoint(ctx, path, { model, optimizer }, options)).data as number[]));
while (optimizer.steps < Number(steps)) {
  await failIfDue("");
  losses.push(await trainStep(ctx, { model, optimizer }));
  if (optimizer.steps % 3 === 0) await saveCheckpoint(ctx, path, { model, optimizer, data: losses }, options);
}
await writeFile(join(root, host, "losses.json"), JSON.stringify(losses));
