import { type FileHandle, open, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";
import {
  type DType,
  dtypeBytes,
  formatShape,
  type HostTensor,
  OptionError,
  type Shape,
  ShapeError,
  numel,
  Tensor,
  expectValue,
  formatValue,
} from "@mosaic/core";
import { toBytes } from "./convert.ts";
import { draftOf, removeLeftDrafts } from "./draft.ts";
import { checkPath, formatNames } from "./format.ts";

/** Tensors of a device or of the host, by name. */
export type Savable = ReadonlyMap<string, Tensor | HostTensor>;

interface Part {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: Shape;
  readonly bytes: number;
  readonly values: Promise<Float32Array>;
}

/**
 * Writes a safetensors file, which `safetensors` of Python reads, too. Values are those at the call, even if training
 * goes on before the promise resolves. The file appears whole or not at all: it is written beside its place, flushed to
 * the disk, and renamed; a file of that name that was there is replaced only then. What processes of this host that were
 * killed left of the same file is removed.
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
 * @throws OptionError for metadata that is not text, which no reader takes; the system's error if the file cannot be written.
 */
export async function writeSafetensors(
  path: string,
  tensors: Savable,
  metadata: Readonly<Record<string, string>> = {},
): Promise<void> {
  checkPath("writeSafetensors", path);
  checkMetadata(metadata);
  const parts = partsOf(tensors);
  const header = headerOf(parts, metadata);
  const { draft, forget } = draftOf(path);
  try {
    // Waits for every value even if one fails, or the others' failures would be nobody's.
    const outcomes = await Promise.allSettled(parts.map(({ values }) => values));
    for (const outcome of outcomes) if (outcome.status === "rejected") throw outcome.reason;
    await removeLeftDrafts(path);
    await writeAll(draft, header, parts);
    await rename(draft, path);
  } catch (error) {
    await rm(draft, { force: true });
    throw error;
  } finally {
    forget();
  }
  await flushFolder(dirname(path));
}

function checkMetadata(metadata: Readonly<Record<string, string>>): void {
  expectValue(
    "writeSafetensors: metadata",
    typeof metadata === "object" && metadata !== null,
    "texts by name",
    metadata,
  );
  for (const [name, value] of Object.entries(metadata) as [string, unknown][]) {
    if (typeof value === "string") continue;
    throw new OptionError({
      where: `writeSafetensors: metadata "${name}"`,
      expected: "text",
      received: formatValue(value),
      remedy: "convert it with String or JSON.stringify",
    });
  }
}

function isSavable(tensor: unknown): boolean {
  const { dtype, shape, values } = (tensor ?? {}) as Partial<HostTensor>;
  if (!Array.isArray(shape) || typeof dtype !== "string" || !Object.hasOwn(dtypeBytes, dtype)) return false;
  return tensor instanceof Tensor || ArrayBuffer.isView(values);
}

/** As the reference implementation orders them: larger elements first, so that all lie aligned; then by name. */
function partsOf(tensors: Savable): Part[] {
  expectValue("writeSafetensors", tensors instanceof Map, "a Map of tensors by name", tensors);
  const parts = [...tensors].map(([name, tensor]): Part => {
    expectValue(
      `writeSafetensors, "${String(name)}"`,
      isSavable(tensor),
      "a tensor, or { dtype, shape, values }",
      tensor,
    );
    const { dtype, shape } = tensor;
    if (name === "__metadata__")
      throw new OptionError({ where: "writeSafetensors", expected: "another name", received: name });
    if (!(tensor instanceof Tensor) && tensor.values.length !== numel(shape)) {
      throw new ShapeError({
        where: `writeSafetensors, "${name}"`,
        expected: `${numel(shape)} values for ${formatShape(shape)}`,
        received: String(tensor.values.length),
      });
    }
    const values = tensor instanceof Tensor ? tensor.read() : Promise.resolve(tensor.values);
    return { name, dtype, shape, bytes: numel(shape) * dtypeBytes[dtype], values };
  });
  return parts.sort((a, b) => dtypeBytes[b.dtype] - dtypeBytes[a.dtype] || (a.name < b.name ? -1 : 1));
}

/** The length and the JSON, padded with spaces so that the tensors begin at a multiple of eight bytes. */
function headerOf(parts: readonly Part[], metadata: Readonly<Record<string, string>>): Uint8Array {
  let begin = 0;
  const entries = parts.map(({ name, dtype, shape, bytes }) => {
    const offsets = [begin, (begin += bytes)];
    return [name, { dtype: formatNames[dtype], shape, data_offsets: offsets }];
  });
  const texts = Object.keys(metadata).length > 0 ? [["__metadata__", metadata]] : [];
  const json = new TextEncoder().encode(JSON.stringify(Object.fromEntries([...texts, ...entries])));
  const length = Math.ceil(json.length / 8) * 8;
  const header = new Uint8Array(8 + length).fill(0x20);
  new DataView(header.buffer).setBigUint64(0, BigInt(length), true);
  header.set(json, 8);
  return header;
}

async function writeAll(path: string, header: Uint8Array, parts: readonly Part[]): Promise<void> {
  const file = await open(path, "wx");
  try {
    await append(file, header);
    for (const { dtype, values } of parts) await append(file, toBytes(dtype, await values));
    await file.sync();
  } finally {
    await file.close();
  }
}

async function append(file: FileHandle, bytes: Uint8Array): Promise<void> {
  const most = 2 ** 30;
  for (let done = 0; done < bytes.length; ) {
    const { bytesWritten } = await file.write(bytes, done, Math.min(most, bytes.length - done));
    done += bytesWritten;
  }
}

/** A rename is on the disk once its folder is. */
async function flushFolder(path: string): Promise<void> {
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
