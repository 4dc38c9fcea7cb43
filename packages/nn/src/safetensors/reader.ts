import { checkArgument, expectValue, numel, option, type Shape } from "@mosaic/core";
import { checkPath, elementBytes, type Header, type TensorEntry } from "./format.ts";
import { openFile, type ReadableFile, readHeader, readInto, toNumbers } from "./read.ts";

/** Description of a tensor in a file. */
export interface TensorInfo {
  /** The format's own name of the dtype: "F32", "BF16", "I64", …. */
  readonly format: string;
  readonly shape: Shape;
}

/** An open safetensors file. Its header has been read and validated; its tensors are read a range at a time. */
export interface SafetensorsReader extends AsyncDisposable {
  readonly path: string;
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  readonly metadata: ReadonlyMap<string, string>;
  /**
   * Reads elements [from, to) of a tensor, row-major, as float32. Reads no other bytes. The returned memory belongs to
   * the reader and may be overwritten by the next call, so calls must not overlap.
   *
   * @throws OptionError for a name or a range that is not in the file; FileError for a dtype that cannot be converted
   * to float32.
   */
  readRange(name: string, from: number, to: number): Promise<Float32Array>;
  close(): Promise<void>;
}

/**
 * Opens a safetensors file to read parts of it. Memory use is that of the largest range read, not that of the file. The
 * header is validated as in `readSafetensors`.
 *
 * @example
 * ```ts
 * import { mkdtemp } from "node:fs/promises";
 * import { tmpdir } from "node:os";
 * import { join } from "node:path";
 * import { openSafetensors, writeSafetensors } from "@mosaic/nn";
 * const path = join(await mkdtemp(join(tmpdir(), "mosaic-")), "weights.safetensors");
 * const values = Float32Array.of(1, 2, 3, 4, 5, 6);
 * await writeSafetensors(path, new Map([["weight", { dtype: "bfloat16", shape: [3, 2], values }]]));
 * await using file = await openSafetensors(path);
 * file.tensors.get("weight"); // => { format: "BF16", shape: [3, 2] }
 * Array.from(await file.readRange("weight", 2, 4)); // => [3, 4]
 * ```
 * @throws FileError that describes the fault. If the file cannot be opened, its `cause` is the system's error.
 */
export async function openSafetensors(path: string): Promise<SafetensorsReader> {
  checkPath("openSafetensors", path);
  return openReader(path, { opening: `openSafetensors: ${path}`, reading: path });
}

/** Opens a file. `opening` and `reading` are the beginning of errors of the system and of errors of the contents. */
export async function openReader(
  path: string,
  where: { readonly opening: string; readonly reading: string },
): Promise<SafetensorsReader> {
  const file = await openFile(where.opening, path);
  try {
    const { header, start } = await readHeader(where.reading, file);
    return new FileReader(path, file, { header, start });
  } catch (error) {
    await file.close();
    throw error;
  }
}

class FileReader implements SafetensorsReader {
  readonly path: string;
  readonly tensors: ReadonlyMap<string, TensorInfo>;
  readonly metadata: ReadonlyMap<string, string>;
  readonly #file: ReadableFile;
  readonly #start: number;
  readonly #entries: ReadonlyMap<string, TensorEntry>;
  #buffer = new ArrayBuffer(0);

  constructor(
    path: string,
    file: ReadableFile,
    { header, start }: { readonly header: Header; readonly start: number },
  ) {
    this.path = path;
    this.metadata = header.metadata;
    this.tensors = new Map(header.entries.map(({ name, dtype, shape }) => [name, { format: dtype, shape }]));
    this.#file = file;
    this.#start = start;
    this.#entries = new Map(header.entries.map((entry) => [entry.name, entry]));
  }

  async readRange(name: string, from: number, to: number): Promise<Float32Array> {
    const where = `readRange, ${this.path}`;
    const entry = this.#entries.get(name);
    if (!entry) expectValue(where, false, "the name of a tensor in the file", name);
    checkArgument(`${where}: to`, to, option.integer({ min: 0, max: numel(entry!.shape) }));
    checkArgument(`${where}: from`, from, option.integer({ min: 0, max: to }));
    const { dtype, begin } = entry!;
    const bytesPerElement = elementBytes[dtype]!;
    const length = (to - from) * bytesPerElement;
    if (this.#buffer.byteLength < length) this.#buffer = new ArrayBuffer(length);
    const bytes = new Uint8Array(this.#buffer, 0, length);
    await readInto(bytes, { path: this.path, file: this.#file }, this.#start + begin + from * bytesPerElement);
    return toNumbers(`${this.path}, tensor "${name}"`, dtype, bytes);
  }

  close(): Promise<void> {
    return this.#file.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
