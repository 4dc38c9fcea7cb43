import {
  type DType,
  dtypeBytes,
  expectValue,
  formatShape,
  formatValue,
  type HostTensor,
  OptionError,
  type Shape,
  ShapeError,
  numel,
  Tensor,
} from "@mosaic/core";
import { toBytes } from "./read.ts";
import { checkPath, dtypeNames } from "./format.ts";
import { type StagedFile, stageFile } from "./staged-file.ts";

/** Tensors on a device or on the host, by name. */
export type TensorMap = ReadonlyMap<string, Tensor | HostTensor>;

/** Name, dtype and shape of a tensor in a file. */
export interface TensorDescription {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: Shape;
}

interface TensorData extends TensorDescription {
  readonly values: Promise<Float32Array>;
}

/**
 * Writes a safetensors file, which Python's `safetensors` can also read. Writes the values at the time of the call,
 * even if training continues before the promise resolves. The write is atomic: the file is written under a temporary
 * name in the same directory, flushed to disk, and renamed. Only then is an existing file of that name replaced.
 * Temporary files of the same file that killed processes of this host left are removed.
 *
 * @example
 * ```ts
 * import { mkdtemp } from "node:fs/promises";
 * import { tmpdir } from "node:os";
 * import { join } from "node:path";
 * import { init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { readSafetensors, writeSafetensors } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using layer = new Linear(ctx, 4, 2);
 * const path = join(await mkdtemp(join(tmpdir(), "mosaic-")), "layer.safetensors");
 * await writeSafetensors(path, layer.stateDict(), { note: "a layer" });
 * const { tensors, metadata } = await readSafetensors(path);
 * [...tensors.keys()]; // => ["bias", "weight"]
 * metadata.get("note"); // => "a layer"
 * layer.loadStateDict(tensors);
 * ```
 * @throws OptionError for metadata that are not strings, which readers reject; FileError if the file cannot be written.
 */
export async function writeSafetensors(
  path: string,
  tensors: TensorMap,
  metadata: Readonly<Record<string, string>> = {},
): Promise<void> {
  const stagedFile = await stageSafetensors(path, tensors, metadata);
  await stagedFile.publish();
}

/**
 * The first half of `writeSafetensors`: writes the complete file to disk under a temporary name. `onWrite` is called
 * with all bytes, in order.
 */
export async function stageSafetensors(
  path: string,
  tensors: TensorMap,
  metadata: Readonly<Record<string, string>>,
  onWrite?: (bytes: Uint8Array) => void,
): Promise<StagedFile> {
  checkPath("writeSafetensors", path);
  checkMetadata(metadata);
  const tensorData = collectTensors(tensors);
  // Waits for every value even if one fails. Otherwise the failures of others would be unhandled rejections.
  const valueOutcomes = await Promise.allSettled(tensorData.map(({ values }) => values));
  for (const outcome of valueOutcomes) if (outcome.status === "rejected") throw outcome.reason;
  return stageValues(path, tensorData, metadata, {
    onWrite,
    writeValues: async (write) => {
      for (const { dtype, values } of tensorData) await write(toBytes(dtype, await values));
    },
  });
}

/** Writes values as the bytes of a dtype. */
export type WriteBytes = (bytes: Uint8Array) => Promise<void>;

/** Functions that `stageValues` calls. */
export interface ValueWriter {
  /** Called with all bytes of the file, in order. */
  readonly onWrite: ((bytes: Uint8Array) => void) | undefined;
  /** Writes the values of all tensors, in the order in which they were passed. */
  readonly writeValues: (write: WriteBytes) => Promise<void>;
}

/** Writes a file of tensors, which are in the order of `compareTensors`, under a temporary name. */
export function stageValues(
  path: string,
  tensors: readonly TensorDescription[],
  metadata: Readonly<Record<string, string>>,
  { onWrite, writeValues }: ValueWriter,
): Promise<StagedFile> {
  return stageFile(path, async (append) => {
    const write = (bytes: Uint8Array): Promise<void> => {
      onWrite?.(bytes);
      return append(bytes);
    };
    await write(encodeHeader(tensors, metadata));
    await writeValues(write);
  });
}

function checkMetadata(metadata: Readonly<Record<string, string>>): void {
  expectValue(
    "writeSafetensors: metadata",
    typeof metadata === "object" && metadata !== null,
    "an object with string values",
    metadata,
  );
  for (const [name, value] of Object.entries(metadata) as [string, unknown][]) {
    if (typeof value === "string") continue;
    throw new OptionError({
      where: `writeSafetensors: metadata "${name}"`,
      expected: "a string",
      received: formatValue(value),
      remedy: "convert it with String or JSON.stringify",
    });
  }
}

function isTensorLike(tensor: unknown): tensor is Tensor | HostTensor {
  const { dtype, shape, values } = (tensor ?? {}) as Partial<HostTensor>;
  if (!Array.isArray(shape) || typeof dtype !== "string" || !Object.hasOwn(dtypeBytes, dtype)) return false;
  return tensor instanceof Tensor || ArrayBuffer.isView(values);
}

function checkEntry(name: unknown, tensor: unknown): void {
  const where = `writeSafetensors, ${formatValue(name)}`;
  if (!isTensorLike(tensor)) return expectValue(where, false, "a tensor, or { dtype, shape, values }", tensor);
  if (name === "__metadata__")
    throw new OptionError({
      where: "writeSafetensors",
      expected: 'a tensor name other than "__metadata__"',
      received: name,
    });
  if (tensor instanceof Tensor) return;
  // The elements of another array type are not float32, so their bytes would be written as other or as too many values.
  const areFloat32 = tensor.values instanceof Float32Array;
  expectValue(
    `${where}: values`,
    areFloat32,
    "a Float32Array",
    tensor.values,
    "convert with Float32Array.from(values)",
  );
  if (tensor.values.length === numel(tensor.shape)) return;
  throw new ShapeError({
    where,
    expected: `${numel(tensor.shape)} values for ${formatShape(tensor.shape)}`,
    received: String(tensor.values.length),
  });
}

/** Collects the tensors in the order of the reference implementation. */
function collectTensors(tensors: TensorMap): TensorData[] {
  expectValue("writeSafetensors", tensors instanceof Map, "a Map of tensors by name", tensors);
  for (const [name, tensor] of tensors) checkEntry(name, tensor);
  const tensorData = [...tensors].map(([name, tensor]): TensorData => {
    const { dtype, shape } = tensor;
    const values = tensor instanceof Tensor ? tensor.read() : Promise.resolve(tensor.values);
    return { name, dtype, shape, values };
  });
  return tensorData.sort(compareTensors);
}

/** Compares tensors by their order in a file: larger elements first, so that all tensors are aligned, then by name. */
export function compareTensors(a: TensorDescription, b: TensorDescription): number {
  return dtypeBytes[b.dtype] - dtypeBytes[a.dtype] || (a.name < b.name ? -1 : 1);
}

/**
 * Encodes the header: its length and the JSON, padded with spaces so that the tensors begin at a multiple of eight
 * bytes.
 */
function encodeHeader(tensors: readonly TensorDescription[], metadata: Readonly<Record<string, string>>): Uint8Array {
  let dataStart = 0;
  const entries = tensors.map(({ name, dtype, shape }) => {
    const offsets = [dataStart, (dataStart += numel(shape) * dtypeBytes[dtype])];
    return [name, { dtype: dtypeNames[dtype], shape, data_offsets: offsets }];
  });
  const metadataEntries = Object.keys(metadata).length > 0 ? [["__metadata__", metadata]] : [];
  const json = new TextEncoder().encode(JSON.stringify(Object.fromEntries([...metadataEntries, ...entries])));
  const length = Math.ceil(json.length / 8) * 8;
  const header = new Uint8Array(8 + length).fill(0x20);
  new DataView(header.buffer).setBigUint64(0, BigInt(length), true);
  header.set(json, 8);
  return header;
}
