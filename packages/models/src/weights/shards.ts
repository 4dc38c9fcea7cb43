import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { formatShape, formatValue, sameShape } from "@mosaic/core";
import { FileError, openSafetensors, type SafetensorsReader } from "@mosaic/nn";
import { readJson } from "../config/config.ts";
import { isJson } from "../config/fields.ts";
import type { Weight } from "./names.ts";

/** The name of an index, which names the file of each tensor. */
export const indexName = "model.safetensors.index.json";
/** The name of the one file of a folder that has no index. */
export const singleName = "model.safetensors";

/** The open files of a folder, and in which of them each weight is. */
export interface OpenShards extends AsyncDisposable {
  readonly fileOf: ReadonlyMap<string, SafetensorsReader>;
}

/**
 * Opens the weights of a folder and checks every header, name, shape and dtype: nothing is read but headers.
 *
 * @throws FileError for a file that is missing or truncated, a weight that is missing, unexpected, of another shape, or of integers.
 */
export async function openShards(folder: string, weights: readonly Weight[], isTied: boolean): Promise<OpenShards> {
  const files: SafetensorsReader[] = [];
  const close = async (): Promise<void> => {
    await Promise.all(files.map((file) => file.close()));
  };
  try {
    const indexed = await readIndex(folder);
    for (const name of indexed ? new Set(indexed.values()) : [singleName]) files.push(await openShard(folder, name));
    const fileOf = new Map(files.flatMap((file) => [...file.tensors.keys()].map((name) => [name, file] as const)));
    checkIndex(folder, indexed, fileOf);
    checkWeights(folder, weights, { fileOf, isTied });
    return { fileOf, [Symbol.asyncDispose]: close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** File names by the names of tensors. */
async function readIndex(folder: string): Promise<ReadonlyMap<string, string> | undefined> {
  const json = await readJson(folder, indexName, true);
  if (!json) return undefined;
  const map = json.weight_map;
  const entries = isJson(map) ? Object.entries(map) : [];
  const isFileName = (value: unknown): value is string =>
    typeof value === "string" && /^[\w.-]+\.safetensors$/.test(value);
  if (entries.length > 0 && entries.every((entry): entry is [string, string] => isFileName(entry[1])))
    return new Map(entries);
  throw new FileError({
    where: `${join(folder, indexName)}: weight_map`,
    expected: "an object that maps tensor names to .safetensors file names",
    received: formatValue(map),
    remedy: "download the file again",
  });
}

async function openShard(folder: string, name: string): Promise<SafetensorsReader> {
  try {
    return await openSafetensors(join(folder, name));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    const found = (await readdir(folder)).filter((each) => /\.(safetensors|bin|pth|gguf)$/.test(each));
    throw new FileError(
      {
        where: join(folder, name),
        expected: "weights in safetensors format",
        received:
          found.length > 0 ? `no such file; the folder contains ${found.slice(0, 4).join(", ")}` : "no such file",
        remedy: found.some((each) => each.endsWith(".bin"))
          ? "convert the weights to safetensors"
          : "download all files",
      },
      { cause: error },
    );
  }
}

/** Every tensor must be in the file that the index names. */
function checkIndex(
  folder: string,
  indexed: ReadonlyMap<string, string> | undefined,
  fileOf: ReadonlyMap<string, SafetensorsReader>,
): void {
  for (const [name, file] of indexed ?? []) {
    const path = join(folder, file);
    if (fileOf.get(name)?.path === path) continue;
    throw new FileError({
      where: path,
      expected: `tensor "${name}", as specified by ${indexName}`,
      received: fileOf.has(name) ? `the tensor in ${fileOf.get(name)!.path}` : "no such tensor",
      remedy: "download the folder again; nothing was loaded",
    });
  }
}

/** Tensors that a folder may have and a model has not: tables that are computed, and a tied projection that was stored nevertheless. */
function isRedundant(name: string, isTied: boolean): boolean {
  return name.endsWith(".rotary_emb.inv_freq") || (isTied && name === "lm_head.weight");
}

const floats = new Set(["F32", "BF16", "F16", "F64"]);

function checkWeights(
  folder: string,
  weights: readonly Weight[],
  { fileOf, isTied }: { fileOf: ReadonlyMap<string, SafetensorsReader>; isTied: boolean },
): void {
  const expected = new Set(weights.map(({ name }) => name));
  const missing = weights.filter(({ name }) => !fileOf.has(name)).map(({ name }) => `missing "${name}"`);
  const unexpected = [...fileOf.keys()]
    .filter((name) => !expected.has(name) && !isRedundant(name, isTied))
    .map((name) => `unexpected "${name}"`);
  const misshapen = weights.flatMap(({ name, shape }) => {
    const found = fileOf.get(name)?.tensors.get(name);
    if (!found) return [];
    if (!sameShape(found.shape, shape))
      return [`"${name}" has shape ${formatShape(found.shape)} instead of ${formatShape(shape)}`];
    return floats.has(found.format) ? [] : [`"${name}" has the quantized format ${found.format}`];
  });
  const faults = [...misshapen, ...missing, ...unexpected];
  if (faults.length === 0) return;
  const more = faults.length > 8 ? ` and ${faults.length - 8} more` : "";
  throw new FileError({
    where: folder,
    expected: `the ${weights.length} weights that config.json describes`,
    received: `${faults.slice(0, 8).join("; ")}${more}`,
    remedy: "use the config.json of these weights; nothing was loaded",
  });
}
