import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type DType, type HostTensor, numel } from "@mosaic/core";
import { writeSafetensors } from "@mosaic/nn";
import type { ReferenceModel } from "./references.ts";

/**
 * Returns integers from −128 to 127: the finalizer of MurmurHash3 applied to index plus FNV-1a hash of the name, as in
 * make.py.
 */
function hashToIntegers(name: string, count: number): Int32Array {
  let seed = 2_166_136_261;
  for (const byte of new TextEncoder().encode(name)) seed = Math.imul(seed ^ byte, 16_777_619) >>> 0;
  return Int32Array.from({ length: count }, (_, i) => {
    let h = (i + seed) >>> 0;
    h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
    h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
    return ((h ^ (h >>> 16)) >>> 24) - 128;
  });
}

/** Returns the weight with a name. Its values are exact in bfloat16. */
export function generateWeight(name: string, shape: readonly number[], hasOffset: boolean): Float32Array {
  const integers = hashToIntegers(name, numel(shape));
  if (name.includes("norm")) return Float32Array.from(integers, (k) => Math.floor(k / 8) / 128 + (hasOffset ? 0 : 1));
  return Float32Array.from(integers, (k) => k * 2 ** (name.includes("embed_tokens") ? -10 : -9));
}

/** Returns all weights of a model, with Hugging Face's names. */
export function generateWeights({ config, shapes }: ReferenceModel, dtype: DType = "float32"): Map<string, HostTensor> {
  const hasOffset = String(config.model_type).startsWith("gemma");
  const entries = Object.entries(shapes).map(
    ([name, shape]) => [name, { dtype, shape, values: generateWeight(name, shape, hasOffset) }] as const,
  );
  return new Map(entries);
}

/** Options of a folder that a test writes. */
export interface FolderOptions {
  readonly dtype?: DType;
  /** Number of files of the weights; 1: model.safetensors only. Default 3. */
  readonly shards?: number;
  /** Additional files, as JSON. */
  readonly files?: Readonly<Record<string, unknown>>;
}

/** Writes a folder as save_pretrained does, with weights from a formula. It is removed when the result is disposed. */
export async function writeFolder(
  model: ReferenceModel,
  { dtype = "float32", shards = 3, files = {} }: FolderOptions = {},
): Promise<{ readonly path: string } & AsyncDisposable> {
  const path = await mkdtemp(join(tmpdir(), "mosaic-models-"));
  const writeJson = (name: string, json: unknown) => writeFile(join(path, name), JSON.stringify(json));
  await writeJson("config.json", { ...model.config, dtype });
  const entries = [...generateWeights(model, dtype)];
  const weightMap: Record<string, string> = {};
  for (let i = 0; i < shards; i++) {
    const name = shards === 1 ? "model.safetensors" : `model-0000${i + 1}-of-0000${shards}.safetensors`;
    const shardEntries = entries.filter((_, index) => index % shards === i);
    for (const [weight] of shardEntries) weightMap[weight] = name;
    await writeSafetensors(join(path, name), new Map(shardEntries), { format: "pt" });
  }
  if (shards > 1) await writeJson("model.safetensors.index.json", { metadata: {}, weight_map: weightMap });
  for (const [name, json] of Object.entries(files)) await writeJson(name, json);
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true }) };
}
