import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import type { CudaSystem } from "../src/addon.ts";
import { emulatedDriver } from "./emulated.ts";

/** Returns the result of cudaSystem() in a separate process, because a process loads its driver only once. */
async function readSystem(env: Readonly<Record<string, string>>): Promise<CudaSystem> {
  const entry = fileURLToPath(new URL("../dist/index.js", import.meta.url));
  const script = `console.log(JSON.stringify((await import(${JSON.stringify(entry)})).cudaSystem()))`;
  const fullEnv = { ...process.env, MOSAIC_CUDA_LIBRARY: emulatedDriver, ...env };
  const node = ["--input-type=module", "--eval", script];
  const { stdout } = await promisify(execFile)(process.execPath, node, { env: fullEnv });
  return JSON.parse(stdout) as CudaSystem;
}

test("cudaSystem() returns the driver and every GPU", async () => {
  const env = { MOSAIC_EMULATED_DEVICES: "2", MOSAIC_EMULATED_CAPABILITY: "90", MOSAIC_EMULATED_MEMORY: "1000000" };
  const { driver, library, gpus } = await readSystem(env);
  expect({ driver, library }).toEqual({ driver: "13.0", library: emulatedDriver });
  expect(gpus).toHaveLength(2);
  for (const gpu of gpus) expect(gpu).toMatchObject({ capability: "9.0", bytes: 1e6 });
  expect(gpus[0]).not.toHaveProperty("problem");
});

test("cudaSystem() reports which GPUs are too old", async () => {
  const { gpus } = await readSystem({ MOSAIC_EMULATED_CAPABILITY: "75" });
  expect(gpus).toMatchObject([
    { problem: "compute capability 7.5 is not supported; 8.0 (Ampere) or newer is required" },
  ]);
});
