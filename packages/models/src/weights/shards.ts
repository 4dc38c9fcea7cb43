import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { formatShape, formatValue, numel, sameShape } from "@mosaic/core";
import { FileError, openSafetensors, type SafetensorsReader } from "@mosaic/nn";
import { readJson } from "../config/config.ts";
import { isJsonObject } from "../config/fields.ts";
import type { ModelConfig } from "../config/config.ts";
import { EMBEDDING_NAME, HEAD_NAME, listWeights, type Weight } from "./names.ts";

/** Number of elements of a file that are on the host at a time, 2 MiB of float32, in addition to the model itself. */
export const CHUNK_ELEMENTS = 2 ** 19;
/** The name of the index file, which maps tensors to files. */
export const INDEX_FILE_NAME = "model.safetensors.index.json";
/** The name of the only file of a folder without an index. */
export const SINGLE_FILE_NAME = "model.safetensors";

/** The open files of a folder, and the file of each weight. */
export interface OpenShards extends AsyncDisposable {
  /** The weights to read. */
  readonly weights: readonly Weight[];
  /**
   * Whether the output projection shares the weight of the embedding: the config ties them, and the folder stores no
   * different one.
   */
  readonly isTied: boolean;
  readonly fileByTensor: ReadonlyMap<string, SafetensorsReader>;
}

/**
 * Opens the weights of a folder and checks every header, name, shape and dtype. Reads only headers, and the output
 * projection if it is stored although the config ties it to the embedding. As in transformers 5, a stored projection
 * that differs from the embedding is used.
 *
 * @throws FileError for a file that is missing or truncated, and for a weight that is missing, unexpected, of another
 * shape, or of an integer dtype.
 */
export async function openShards(folder: string, config: ModelConfig): Promise<OpenShards> {
  const files: SafetensorsReader[] = [];
  const close = async (): Promise<void> => {
    await Promise.all(files.map((file) => file.close()));
  };
  try {
    // As in transformers, the single file has precedence.
    const hasSingleFile = (await readdir(folder)).includes(SINGLE_FILE_NAME);
    const fileNames = hasSingleFile ? undefined : await readIndex(folder);
    for (const name of fileNames ? new Set(fileNames.values()) : [SINGLE_FILE_NAME])
      files.push(await openShard(folder, name));
    const fileByTensor = new Map(
      files.flatMap((file) => [...file.tensors.keys()].map((name) => [name, file] as const)),
    );
    checkIndex(folder, fileNames, fileByTensor);
    const storesHead = fileByTensor.has(HEAD_NAME);
    const storedWeights = listWeights({ ...config, isTied: config.isTied && !storesHead });
    checkWeights(folder, storedWeights, fileByTensor);
    const isTied = config.isTied && (!storesHead || (await isHeadEmbedding(fileByTensor)));
    const weights = isTied ? storedWeights.filter(({ name }) => name !== HEAD_NAME) : storedWeights;
    return { fileByTensor, weights, isTied, [Symbol.asyncDispose]: close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Reads the index: file names by tensor name; undefined if there is no index. */
async function readIndex(folder: string): Promise<ReadonlyMap<string, string> | undefined> {
  const json = await readJson(folder, INDEX_FILE_NAME, true);
  if (!json) return undefined;
  const weightMap = json.weight_map;
  const entries = isJsonObject(weightMap) ? Object.entries(weightMap) : [];
  const isFileName = (value: unknown): value is string =>
    typeof value === "string" && /^[\w.-]+\.safetensors$/.test(value);
  if (entries.length > 0 && entries.every((entry): entry is [string, string] => isFileName(entry[1])))
    return new Map(entries);
  throw new FileError({
    where: `${join(folder, INDEX_FILE_NAME)}: weight_map`,
    expected: "an object that maps tensor names to .safetensors file names",
    received: formatValue(weightMap),
    remedy: "download the file again",
  });
}

async function openShard(folder: string, name: string): Promise<SafetensorsReader> {
  try {
    return await openSafetensors(join(folder, name));
  } catch (error) {
    const { code } = ((error as Error).cause ?? {}) as NodeJS.ErrnoException;
    if (code !== "ENOENT") throw error;
    const weightFileNames = (await readdir(folder)).filter((each) => /\.(safetensors|bin|pth|gguf)$/.test(each));
    throw new FileError(
      {
        where: join(folder, name),
        expected: "weights in safetensors format",
        received:
          weightFileNames.length > 0
            ? `no such file; the folder contains ${weightFileNames.slice(0, 4).join(", ")}`
            : "no such file",
        remedy: weightFileNames.some((each) => each.endsWith(".bin"))
          ? "convert the weights to safetensors"
          : "download all files",
      },
      { cause: error },
    );
  }
}

/** Throws a FileError unless every tensor is in the file that the index specifies. */
function checkIndex(
  folder: string,
  fileNames: ReadonlyMap<string, string> | undefined,
  fileByTensor: ReadonlyMap<string, SafetensorsReader>,
): void {
  for (const [name, file] of fileNames ?? []) {
    const path = join(folder, file);
    if (fileByTensor.get(name)?.path === path) continue;
    throw new FileError({
      where: path,
      expected: `tensor "${name}", as specified by ${INDEX_FILE_NAME}`,
      received: fileByTensor.has(name) ? `the tensor in ${fileByTensor.get(name)!.path}` : "no such tensor",
      remedy: "download the folder again; nothing was loaded",
    });
  }
}

/** Returns whether a tensor of a folder is not needed by the model, because it is a table that is computed. */
const isRedundant = (name: string): boolean => name.endsWith(".rotary_emb.inv_freq");

const FLOAT_FORMATS = new Set(["F32", "BF16", "F16", "F64"]);

function checkWeights(
  folder: string,
  weights: readonly Weight[],
  fileByTensor: ReadonlyMap<string, SafetensorsReader>,
): void {
  const expectedNames = new Set(weights.map(({ name }) => name));
  const missingProblems = weights.filter(({ name }) => !fileByTensor.has(name)).map(({ name }) => `missing "${name}"`);
  const unexpectedProblems = [...fileByTensor.keys()]
    .filter((name) => !expectedNames.has(name) && !isRedundant(name))
    .map((name) => `unexpected "${name}"`);
  const tensorProblems = weights.flatMap(({ name, shape }) => {
    const fileTensor = fileByTensor.get(name)?.tensors.get(name);
    if (!fileTensor) return [];
    if (!sameShape(fileTensor.shape, shape))
      return [`"${name}" has shape ${formatShape(fileTensor.shape)} instead of ${formatShape(shape)}`];
    return FLOAT_FORMATS.has(fileTensor.format) ? [] : [`"${name}" has the quantized format ${fileTensor.format}`];
  });
  const problems = [...tensorProblems, ...missingProblems, ...unexpectedProblems];
  if (problems.length === 0) return;
  const omittedText = problems.length > 8 ? ` and ${problems.length - 8} more` : "";
  throw new FileError({
    where: folder,
    expected: `the ${weights.length} weights that config.json describes`,
    received: `${problems.slice(0, 8).join("; ")}${omittedText}`,
    remedy: "use the config.json of these weights; nothing was loaded",
  });
}

/**
 * Returns whether a folder stores the embedding a second time as its output projection, as some folders with tied
 * weights do. Both have the same shape. They are compared a range at a time, up to the first difference.
 */
async function isHeadEmbedding(fileByTensor: ReadonlyMap<string, SafetensorsReader>): Promise<boolean> {
  const [embeddingFile, headFile] = [fileByTensor.get(EMBEDDING_NAME)!, fileByTensor.get(HEAD_NAME)!];
  const size = numel(embeddingFile.tensors.get(EMBEDDING_NAME)!.shape);
  for (let start = 0; start < size; start += CHUNK_ELEMENTS) {
    const end = Math.min(size, start + CHUNK_ELEMENTS);
    // The memory of a range belongs to the reader, which may be the same for both.
    const embedding = (await embeddingFile.readRange(EMBEDDING_NAME, start, end)).slice();
    const head = await headFile.readRange(HEAD_NAME, start, end);
    if (!embedding.every((value, i) => value === head[i])) return false;
  }
  return true;
}
