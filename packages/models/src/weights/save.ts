import { copyFile, mkdir, rm, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import {
  defineOptions,
  dtypeBytes,
  expectValue,
  fromArray,
  type Module,
  MosaicError,
  noGrad,
  numel,
  option,
  type OptionsOf,
  StateDictError,
  type Tensor,
} from "@mosaic/core";
import { writeSafetensors } from "@mosaic/nn";
import { editJson } from "../config/json-text.ts";
import type { CachedModel } from "../generate/generation-cache.ts";
import { type Weight, listWeights } from "./names.ts";
import { INDEX_FILE_NAME, SINGLE_FILE_NAME } from "./shards.ts";

export const saveModelOptions = defineOptions("saveModel", {
  /** The most bytes of weights in one file; beyond that there are several, and an index. Each is on the host, as float32, while it is written. Default 1000000000. */
  maxShardBytes: option.integer({ min: 1, default: 1_000_000_000 }),
});
/** What `CausalLM.save` takes beside the folder. */
export type SaveModelOptions = OptionsOf<typeof saveModelOptions>;

/** The folder that a model was loaded from, if it was. */
export interface ModelSource {
  readonly folder: string | null;
  /** config.json. */
  readonly configText: string;
  /** Names of the files that a saved folder has, too. */
  readonly files: readonly string[];
}

/** What is saved. */
export interface SavedModel extends CachedModel {
  readonly source: ModelSource;
  namedParameters(): ReturnType<Module["namedParameters"]>;
}

/** Writes a model as a Hugging Face folder, on rank 0, while the others wait; see `CausalLM.save`. */
export async function saveModel(model: SavedModel, folder: string, options?: SaveModelOptions): Promise<void> {
  const isValidPath = typeof folder === "string" && folder !== "" && !folder.includes("\0");
  expectValue("saveModel: folder", isValidPath, "the path of a folder", folder);
  const { maxShardBytes } = saveModelOptions.parse(options);
  const { ctx } = model;
  const weights = listSavedTensors(model);
  let failure: unknown;
  if (ctx.rank === 0) {
    try {
      await writeFiles(model, folder);
      await writeWeights(folder, weights, maxShardBytes);
    } catch (error) {
      failure = error;
    }
  }
  for (const { tensor } of weights) tensor.dispose();
  const hasFailed = await hasFailedOnAnyRank(model, failure !== undefined);
  if (failure !== undefined) throw failure;
  if (hasFailed) {
    throw new MosaicError({
      where: `saveModel, rank ${ctx.rank}`,
      expected: "success of rank 0, which writes the folder",
      received: "a failure of rank 0",
      remedy: "see the error on rank 0",
    });
  }
}

/** Every rank learns whether rank 0 failed, so that none goes on as if there were a folder. */
async function hasFailedOnAnyRank({ ctx }: CachedModel, hasFailed: boolean): Promise<boolean> {
  if (ctx.size === 1) return hasFailed;
  using numFailures = fromArray(ctx, [hasFailed ? 1 : 0], [1]);
  ctx.world.allReduce(numFailures, "sum", { label: "saveModel" }).wait();
  return (await numFailures.read())[0] !== 0;
}

interface SavedTensor {
  readonly name: string;
  readonly tensor: Tensor;
}

/** The weights by Hugging Face's names, as views of the parameters. */
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
    // Transformers refuses files without the format.
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
}

const countBytes = ({ shape, dtype }: Tensor): number => numel(shape) * dtypeBytes[dtype];

/** Consecutive weights, as many as fit; one that is larger has a shard of its own. */
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
