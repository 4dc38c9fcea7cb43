import { copyFile, mkdir, rm, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import {
  allGatherObject,
  defineOptions,
  dtypeBytes,
  expectValue,
  type Module,
  noGrad,
  numel,
  option,
  type OptionsOf,
  runOnAllRanks,
  StateDictError,
  type Tensor,
} from "@mosaic/core";
import { checkSamePath, writeSafetensors } from "@mosaic/nn";
import { editJson } from "../config/json-text.ts";
import type { CachedModel } from "../generate/generation-cache.ts";
import { type Weight, listWeights } from "./names.ts";
import { INDEX_FILE_NAME, SINGLE_FILE_NAME } from "./shards.ts";

export const saveModelOptions = defineOptions("saveModel", {
  /**
   * Maximum bytes of weights in one file. Larger models have several files and an index. While a file is written, its
   * weights are on the host as float32. Default 1000000000.
   */
  maxShardBytes: option.integer({ min: 1, default: 1_000_000_000 }),
});
/** Options of `CausalLM.save`. */
export type SaveModelOptions = OptionsOf<typeof saveModelOptions>;

/** Origin of a model: the folder from which it was loaded, if any, and its config. */
export interface ModelSource {
  readonly folder: string | null;
  /** The text of config.json. */
  readonly configText: string;
  /** Names of the files that are copied to a saved folder. */
  readonly files: readonly string[];
}

/** The model to save. */
export interface SavedModel extends CachedModel {
  readonly source: ModelSource;
  namedParameters(): ReturnType<Module["namedParameters"]>;
}

/** Writes a model as a Hugging Face folder on rank 0 while the others wait; see `CausalLM.save`. */
export async function saveModel(model: SavedModel, folder: string, options?: SaveModelOptions): Promise<void> {
  const isValidPath = typeof folder === "string" && folder !== "" && !folder.includes("\0");
  expectValue("saveModel: folder", isValidPath, "the path of a folder", folder);
  const { maxShardBytes } = saveModelOptions.parse(options);
  const { ctx } = model;
  checkSamePath("saveModel: folder", await allGatherObject(ctx, folder, { label: "saveModel" }));
  const weights = listSavedTensors(model);
  try {
    await runOnAllRanks(ctx, "saveModel", async () => {
      if (ctx.rank !== 0) return;
      await writeFiles(model, folder);
      await writeWeights(folder, weights, maxShardBytes);
    });
  } finally {
    for (const { tensor } of weights) tensor.dispose();
  }
}

interface SavedTensor {
  readonly name: string;
  readonly tensor: Tensor;
}

/** Lists the weights with Hugging Face's names, as views of the parameters. */
function listSavedTensors(model: SavedModel): SavedTensor[] {
  const parameters = new Map(model.namedParameters());
  const weights = listWeights(model.config);
  const missingWeight = weights.find(({ parameter }) => !parameters.has(parameter));
  if (missingWeight) {
    throw new StateDictError({
      where: "saveModel",
      expected: `a parameter "${missingWeight.parameter}"`,
      received: "none, because a layer of the model was replaced",
      remedy: "save before addLoRA, or restore the merged layers",
    });
  }
  return noGrad(() =>
    weights.map(({ name, parameter, row, shape }: Weight) => ({
      name,
      tensor: parameters.get(parameter)!.slice(0, row, row + shape[0]!),
    })),
  );
}

async function writeFiles({ source, settings }: SavedModel, folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  const config = editJson(source.configText, { torch_dtype: undefined, dtype: settings.dtype });
  await writeFile(join(folder, "config.json"), config);
  const { folder: sourceFolder, files } = source;
  if (sourceFolder === null || resolve(folder) === resolve(sourceFolder)) return;
  for (const name of files) await copyFile(join(sourceFolder, name), join(folder, name));
}

async function writeWeights(folder: string, weights: readonly SavedTensor[], maxShardBytes: number): Promise<void> {
  const shards = splitIntoShards(weights, maxShardBytes);
  const formatNumber = (value: number): string => String(value).padStart(5, "0");
  const fileNames = shards.map((_, i) =>
    shards.length === 1
      ? SINGLE_FILE_NAME
      : `model-${formatNumber(i + 1)}-of-${formatNumber(shards.length)}.safetensors`,
  );
  for (const [i, shard] of shards.entries()) {
    const tensors = new Map(shard.map(({ name, tensor }) => [name, tensor]));
    // Transformers rejects files without the metadata "format".
    await writeSafetensors(join(folder, fileNames[i]!), tensors, { format: "pt" });
  }
  const index = join(folder, INDEX_FILE_NAME);
  if (shards.length === 1) {
    await rm(index, { force: true });
    return;
  }
  const weightMap = Object.fromEntries(shards.flatMap((shard, i) => shard.map(({ name }) => [name, fileNames[i]])));
  const totalBytes = weights.reduce((sum, { tensor }) => sum + countBytes(tensor), 0);
  await writeFile(
    index,
    `${JSON.stringify({ metadata: { total_size: totalBytes }, weight_map: weightMap }, null, 2)}\n`,
  );
  // A single file of an earlier save has precedence over the index.
  await rm(join(folder, SINGLE_FILE_NAME), { force: true });
}

const countBytes = ({ shape, dtype }: Tensor): number => numel(shape) * dtypeBytes[dtype];

/** Splits the weights into shards of consecutive weights, as many as fit. A weight that is larger has its own shard. */
function splitIntoShards(weights: readonly SavedTensor[], maxShardBytes: number): readonly SavedTensor[][] {
  const shards: SavedTensor[][] = [];
  let remainingBytes = 0;
  for (const weight of weights) {
    const bytes = countBytes(weight.tensor);
    if (bytes > remainingBytes || shards.length === 0) {
      shards.push([]);
      remainingBytes = maxShardBytes;
    }
    shards.at(-1)!.push(weight);
    remainingBytes -= bytes;
  }
  return shards;
}
