import { mkdtemp, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { init, numel } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { expect, test } from "vitest";
import { loadModel, parseConfig } from "../src/index.ts";
import { type Weight, listWeights } from "../src/weights/names.ts";
import { models } from "./reference/references.ts";

const MIB = 2 ** 20;

/** Config of a folder of 320 MiB in float32, in two files. */
const config = {
  ...models.llama3!.config,
  ...{ vocab_size: 16_384, hidden_size: 1024, intermediate_size: 4096, num_hidden_layers: 3 },
  ...{ num_attention_heads: 16, num_key_value_heads: 16, head_dim: 64 },
};

async function writeLargeFolder(dtype: "float32" | "bfloat16"): Promise<{ path: string; elements: number }> {
  const path = await mkdtemp(join(tmpdir(), "mosaic-models-"));
  const weights = listWeights(parseConfig("config.json", config));
  const weightMap: Record<string, string> = {};
  for (const [i, shardWeights] of [weights.slice(0, 5), weights.slice(5)].entries()) {
    const name = `model-0000${i + 1}-of-00002.safetensors`;
    for (const weight of shardWeights) weightMap[weight.name] = name;
    await writeZeros(join(path, name), shardWeights, dtype);
  }
  await writeFile(join(path, "model.safetensors.index.json"), JSON.stringify({ weight_map: weightMap }));
  await writeFile(join(path, "config.json"), JSON.stringify({ ...config, dtype }));
  return { path, elements: weights.reduce((sum, { shape }) => sum + numel(shape), 0) };
}

/** Writes a sparse safetensors file of zeros, which needs neither memory nor disk space. */
async function writeZeros(path: string, weights: readonly Weight[], dtype: "float32" | "bfloat16"): Promise<void> {
  const { format, bytes } = dtype === "float32" ? { format: "F32", bytes: 4 } : { format: "BF16", bytes: 2 };
  let end = 0;
  const entries = weights.map(({ name, shape }) => {
    const dataStart = end;
    end += numel(shape) * bytes;
    return [name, { dtype: format, shape, data_offsets: [dataStart, end] }];
  });
  const json = new TextEncoder().encode(JSON.stringify(Object.fromEntries(entries)));
  const header = new Uint8Array(8 + json.length);
  new DataView(header.buffer).setBigUint64(0, BigInt(json.length), true);
  header.set(json, 8);
  await writeFile(path, header);
  await truncate(path, header.length + end);
}

/** Returns the resident memory of this process in bytes: the current value, or the peak since `resetPeak`. */
async function readMemoryField(field: "VmRSS" | "VmHWM"): Promise<number> {
  const status = await readFile("/proc/self/status", "utf8");
  return 1024 * Number(new RegExp(`${field}:\\s+(\\d+) kB`).exec(status)![1]);
}

const resetPeakMemory = () => writeFile("/proc/self/clear_refs", "5");

test.each([
  ["float32", "float32"],
  ["bfloat16", "bfloat16"],
  ["bfloat16", "float32"],
] as const)("loading a %s folder as %s needs less than 64 MiB beyond the parameters", async (storedDType, dtype) => {
  const folder = await writeLargeFolder(storedDType);
  try {
    await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
    const residentBefore = await readMemoryField("VmRSS");
    await resetPeakMemory();
    using model = await loadModel(ctx, folder.path, { dtype });
    const parameters = folder.elements * (dtype === "float32" ? 4 : 2);
    const peakIncrease = (await readMemoryField("VmHWM")) - residentBefore;
    expect(model.parameters().reduce((sum, { size }) => sum + size, 0)).toBe(folder.elements);
    expect(peakIncrease).toBeGreaterThan(0.9 * parameters);
    expect(peakIncrease).toBeLessThan(parameters + 64 * MIB);
  } finally {
    await rm(folder.path, { recursive: true });
  }
});
