import { copyFile, mkdir, rm, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import {
  defineOptions,
  type DType,
  dtypeBytes,
  expectValue,
  type HostTensor,
  type Module,
  numel,
  option,
  type OptionsOf,
  runOnAllRanks,
  StateDictError,
} from "@mosaic/core";
import { checkSamePath, readStateDict, writeSafetensors } from "@mosaic/nn";
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
export type SavedModel = CachedModel & Module & { readonly source: ModelSource };

/** Writes a model as a Hugging Face folder on rank 0 while the others wait; see `CausalLM.save`. */
export async function saveModel(model: SavedModel, folder: string, options?: SaveModelOptions): Promise<void> {
  const { ctx } = model;
  let files: readonly WeightFile[] = [];
  const folders = await runOnAllRanks(ctx, "saveModel", () => {
    const isValidPath = typeof folder === "string" && folder !== "" && !folder.includes("\0");
    expectValue("saveModel: folder", isValidPath, "the path of a folder", folder);
    const { maxShardBytes } = saveModelOptions.parse(options);
    files = nameFiles(splitIntoFiles(listSavedWeights(model), maxShardBytes));
    return folder;
  });
  checkSamePath("saveModel: folder", folders);
  await runOnAllRanks(ctx, "saveModel", () => writeFolder(model, folder, files));
}

/**
 * Writes the folder on rank 0. Reading the parameters of a file is collective for a sharded model, so a rank that has
 * failed reads them, too, before it throws its first error.
 */
async function writeFolder(model: SavedModel, folder: string, files: readonly WeightFile[]): Promise<void> {
  let failure: unknown;
  const tryStep = async (step: () => Promise<void>): Promise<void> => {
    try {
      await step();
    } catch (error) {
      failure ??= error;
    }
  };
  const isWriter = (): boolean => model.ctx.rank === 0 && failure === undefined;
  await tryStep(async () => {
    if (isWriter()) await writeFiles(model, folder);
  });
  for (const file of files) {
    await tryStep(async () => {
      const parameters = await readParameters(model, file);
      if (isWriter()) await writeWeights(join(folder, file.name), file.weights, parameters);
    });
  }
  await tryStep(async () => {
    if (isWriter()) await writeIndex(folder, files);
  });
  if (failure !== undefined) throw failure;
}

/** A weight, and the dtype in which it is saved. */
interface SavedWeight extends Weight {
  readonly dtype: DType;
}

/** A file of weights. */
interface WeightFile {
  readonly name: string;
  readonly weights: readonly SavedWeight[];
}

/** Lists the weights with Hugging Face's names, which are rows of the parameters. */
function listSavedWeights(model: SavedModel): readonly SavedWeight[] {
  const parameters = new Map(model.namedParameters());
  return listWeights(model.config).map((weight) => {
    const parameter = parameters.get(weight.parameter);
    if (parameter) return { ...weight, dtype: parameter.dtype };
    throw new StateDictError({
      where: "saveModel",
      expected: `a parameter "${weight.parameter}"`,
      received: "none, because a layer of the model was replaced",
      remedy: "call mergeLoRA(model) if it has adapters, or restore the replaced layers",
    });
  });
}

async function writeFiles({ source, settings }: SavedModel, folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  const config = editJson(source.configText, { torch_dtype: undefined, dtype: settings.dtype });
  await writeFile(join(folder, "config.json"), config);
  const { folder: sourceFolder, files } = source;
  if (sourceFolder === null || resolve(folder) === resolve(sourceFolder)) return;
  for (const name of files) await copyFile(join(sourceFolder, name), join(folder, name));
}

/** Copies the parameters of a file to the host of rank 0. */
function readParameters(model: SavedModel, { weights }: WeightFile): Promise<Map<string, HostTensor>> {
  const names = [...new Set(weights.map(({ parameter }) => parameter))];
  return readStateDict(model.ctx, model, { names, rank0Only: true });
}

/** Writes one file of weights from the values of their parameters. */
async function writeWeights(
  path: string,
  weights: readonly SavedWeight[],
  parameters: ReadonlyMap<string, HostTensor>,
): Promise<void> {
  const tensors = weights.map(({ name, parameter, row, shape }): [string, HostTensor] => {
    const { dtype, values } = parameters.get(parameter)!;
    const start = row * numel(shape.slice(1));
    return [name, { dtype, shape, values: values.subarray(start, start + numel(shape)) }];
  });
  // Transformers rejects files without the metadata "format".
  await writeSafetensors(path, new Map(tensors), { format: "pt" });
}

/** Writes the index of several files, and removes the files of an earlier save that have precedence over them. */
async function writeIndex(folder: string, files: readonly WeightFile[]): Promise<void> {
  const index = join(folder, INDEX_FILE_NAME);
  if (files.length === 1) {
    await rm(index, { force: true });
    return;
  }
  const weightMap = Object.fromEntries(files.flatMap((file) => file.weights.map(({ name }) => [name, file.name])));
  const totalBytes = files.flatMap(({ weights }) => weights).reduce((sum, weight) => sum + countBytes(weight), 0);
  await writeFile(
    index,
    `${JSON.stringify({ metadata: { total_size: totalBytes }, weight_map: weightMap }, null, 2)}\n`,
  );
  // A single file of an earlier save has precedence over the index.
  await rm(join(folder, SINGLE_FILE_NAME), { force: true });
}

const countBytes = ({ shape, dtype }: SavedWeight): number => numel(shape) * dtypeBytes[dtype];

/** Splits the weights into files of consecutive weights, as many as fit. A weight that is larger has its own file. */
function splitIntoFiles(weights: readonly SavedWeight[], maxShardBytes: number): readonly SavedWeight[][] {
  const files: SavedWeight[][] = [];
  let remainingBytes = 0;
  for (const weight of weights) {
    const bytes = countBytes(weight);
    if (bytes > remainingBytes) {
      files.push([]);
      remainingBytes = maxShardBytes;
    }
    files.at(-1)!.push(weight);
    remainingBytes -= bytes;
  }
  return files;
}

function nameFiles(files: readonly (readonly SavedWeight[])[]): readonly WeightFile[] {
  const formatNumber = (value: number): string => String(value).padStart(5, "0");
  const isSingle = files.length === 1;
  return files.map((weights, i) => ({
    name: isSingle ? SINGLE_FILE_NAME : `model-${formatNumber(i + 1)}-of-${formatNumber(files.length)}.safetensors`,
    weights,
  }));
}
