// Converts between the bytes of a file and float32. Typed arrays have the machine's byte order, which is little-endian
// on every platform that has native addons.
import { open, stat } from "node:fs/promises";
import { type DType, dtypeBytes, type HostTensor } from "@mosaic/core";
import {
  checkPath,
  dtypeNames,
  FileError,
  type Header,
  MAX_HEADER_BYTES,
  parseHeader,
  type TensorEntry,
} from "./format.ts";
import { describeOtherFile } from "./file-kind.ts";

/** The part of Node's FileHandle that reading uses, so that declarations do not depend on Node's types. */
export interface ReadableFile {
  stat(): Promise<{ readonly size: number }>;
  // oxlint-disable-next-line max-params -- as Node's
  read(buffer: Uint8Array, offset: number, length: number, position: number): Promise<{ readonly bytesRead: number }>;
  close(): Promise<void>;
}

/** An open file, and its path for error messages. */
interface NamedFile {
  readonly path: string;
  readonly file: ReadableFile;
}

const scratchFloat = new Float32Array(1);
const scratchWord = new Uint32Array(scratchFloat.buffer);

/**
 * Converts the bytes of a tensor to float32. Widening is exact; F64 and integers are rounded if float32 cannot
 * represent them. Throws a FileError that contains `where` for other dtypes.
 */
export function toNumbers(where: string, dtype: string, bytes: Uint8Array<ArrayBuffer>): Float32Array {
  const { buffer, byteOffset, byteLength } = bytes;
  switch (dtype) {
    case "F32":
      return new Float32Array(buffer, byteOffset, byteLength / 4);
    case "BF16":
      return convertHalves(new Uint16Array(buffer, byteOffset, byteLength / 2), fromBfloat16);
    case "F16":
      return convertHalves(new Uint16Array(buffer, byteOffset, byteLength / 2), fromFloat16);
    case "F64":
      return Float32Array.from(new Float64Array(buffer, byteOffset, byteLength / 8));
    case "I64":
      return Float32Array.from(new BigInt64Array(buffer, byteOffset, byteLength / 8), Number);
    case "I32":
      return Float32Array.from(new Int32Array(buffer, byteOffset, byteLength / 4));
    case "U8":
    case "BOOL":
      return Float32Array.from(bytes);
    default:
      throw new FileError({
        where,
        expected: "dtype F64, F32, F16, BF16, I64, I32, U8 or BOOL",
        received: dtype,
        remedy: "convert the tensor in the program that wrote the file, or read its bytes",
      });
  }
}

function convertHalves(halves: Uint16Array, convert: (half: number) => number): Float32Array {
  const values = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) values[i] = convert(halves[i]!);
  return values;
}

function fromBfloat16(half: number): number {
  scratchWord[0] = half << 16;
  return scratchFloat[0]!;
}

function fromFloat16(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 31) return fraction ? Number.NaN : sign * Infinity;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1024 + fraction) * 2 ** (exponent - 25);
}

/** Converts values to bytes. Values that the dtype cannot represent are rounded to nearest even. */
export function toBytes(dtype: DType, values: Float32Array): Uint8Array {
  if (dtype === "float32") return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  const halves = new Uint16Array(values.length);
  const roundToHalf = dtype === "bfloat16" ? toBfloat16 : toFloat16;
  for (let i = 0; i < values.length; i++) halves[i] = roundToHalf(values[i]!);
  return new Uint8Array(halves.buffer, 0, values.length * dtypeBytes[dtype]);
}

function toBfloat16(value: number): number {
  scratchFloat[0] = value;
  if (Number.isNaN(value)) return (scratchWord[0]! >>> 16) | 0x40;
  return (scratchWord[0]! + 0x7fff + ((scratchWord[0]! >>> 16) & 1)) >>> 16;
}

function toFloat16(value: number): number {
  scratchFloat[0] = value;
  const sign = (scratchWord[0]! >>> 16) & 0x8000;
  if (Number.isNaN(value)) return sign | 0x7e00;
  const magnitude = Math.abs(value);
  if (magnitude >= 65_520) return sign | 0x7c00;
  // 11 significant bits down to 2⁻¹⁴, a spacing of 2⁻²⁴ below. A carry from rounding increments the exponent, which is
  // correct.
  const exponent = Math.max(-14, Math.floor(Math.log2(magnitude)));
  return sign | (((exponent + 15) << 10) - 1024 + roundHalfEven(magnitude / 2 ** (exponent - 10)));
}

function roundHalfEven(value: number): number {
  const floor = Math.floor(value);
  if (value - floor !== 0.5) return Math.round(value);
  return floor % 2 === 0 ? floor : floor + 1;
}

/** A tensor of a file: its bytes, and its values, which are converted on first access. */
export interface FileTensor extends HostTensor {
  /**
   * The format's name of the dtype: "F32", "BF16", "I64", …. For dtypes that devices do not support, `dtype` is
   * "float32".
   */
  readonly format: string;
  readonly bytes: Uint8Array<ArrayBuffer>;
}

/** Contents of a safetensors file. */
export interface SafetensorsFile {
  readonly tensors: ReadonlyMap<string, FileTensor>;
  readonly metadata: ReadonlyMap<string, string>;
}

/**
 * Reads a safetensors file written by any program, and validates it: truncated headers, tensors that overlap or leave
 * gaps, and shapes that do not match their bytes are rejected. Values are float32, row-major, by name; `metadata` holds
 * the strings of the header.
 *
 * @example
 * ```ts
 * import { mkdtemp } from "node:fs/promises";
 * import { tmpdir } from "node:os";
 * import { join } from "node:path";
 * import { fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { readSafetensors, writeSafetensors } from "@mosaic/nn";
 * using device = cpu();
 * const path = join(await mkdtemp(join(tmpdir(), "mosaic-")), "weights.safetensors");
 * await writeSafetensors(path, new Map([["weight", fromArray(device, [1, 2], [2, 1])]]));
 * const weight = (await readSafetensors(path)).tensors.get("weight")!;
 * [weight.dtype, weight.shape, Array.from(weight.values)]; // => ["float32", [2, 1], [1, 2]]
 * ```
 * @throws FileError that describes the fault. If the file cannot be opened, its `cause` is the system's error.
 */
export async function readSafetensors(path: string): Promise<SafetensorsFile> {
  checkPath("readSafetensors", path);
  const file = await openFile(`readSafetensors: ${path}`, path);
  try {
    const { header, start } = await readHeader(path, file);
    const tensors = new Map<string, FileTensor>();
    for (const entry of header.entries) {
      const bytes = await readBytes({ path, file }, start + entry.begin, start + entry.end);
      tensors.set(entry.name, createTensor(path, entry, bytes));
    }
    return { tensors, metadata: header.metadata };
  } finally {
    await file.close();
  }
}

/** Opens a file for reading. Throws a FileError unless it is a file that can be read; its cause is the system's error. */
export async function openFile(where: string, path: string): Promise<ReadableFile> {
  let received: string | undefined;
  let cause: unknown;
  try {
    // Before it is opened, because opening a FIFO waits for a process that writes to it.
    received = describeOtherFile(await stat(path));
    if (received === undefined) return await open(path, "r");
  } catch (error) {
    received = isMissing(error) ? "no such file" : (error as Error).message;
    cause = error;
  }
  const remedy = "correct the path, or the permissions of the file";
  throw new FileError({ where, expected: "a safetensors file", received, remedy }, { cause });
}

/** Returns whether the cause of an error of the system is that there is no file at the path. */
export function isMissing(error: unknown): boolean {
  return ["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException | undefined)?.code ?? "");
}

/** Reads the header of a file. Also returns the offset of the tensor data (`start`) and the file size (`bytes`). */
export async function readHeader(
  path: string,
  file: ReadableFile,
): Promise<{ readonly header: Header; readonly start: number; readonly bytes: number }> {
  const { size } = await file.stat();
  const start = 8 + (await readHeaderLength(path, file, size));
  const header = parseHeader(path, decodeUtf8(path, await readBytes({ path, file }, 8, start)), size - start);
  return { header, start, bytes: size };
}

async function readHeaderLength(path: string, file: ReadableFile, size: number): Promise<number> {
  const lengthPrefix = new DataView((await readBytes({ path, file }, 0, Math.min(8, size))).buffer);
  const length = size < 8 ? Number.NaN : Number(lengthPrefix.getBigUint64(0, true));
  if (length <= MAX_HEADER_BYTES && 8 + length <= size) return length;
  throw new FileError({
    where: path,
    expected: `a safetensors file: an 8-byte header length ≤ ${MAX_HEADER_BYTES}, then a header that ends within the file`,
    received: size < 8 ? `${size} bytes` : `a header of ${length} bytes in a file of ${size} bytes`,
    remedy: "pass a file in safetensors format, or restore it from a copy; nothing was loaded",
  });
}

function decodeUtf8(path: string, bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (cause) {
    throw new FileError(
      {
        where: path,
        expected: "a header in UTF-8",
        received: "bytes that are not valid UTF-8",
        remedy: "restore the file from a copy; nothing was loaded",
      },
      { cause },
    );
  }
}

/** Reads bytes [start, end) into a new buffer, which is aligned for any element type and no larger than one tensor. */
async function readBytes(source: NamedFile, start: number, end: number): Promise<Uint8Array<ArrayBuffer>> {
  return readInto(new Uint8Array(end - start), source, start);
}

/** Fills `bytes` from the file, starting at byte `begin`. */
export async function readInto(
  bytes: Uint8Array<ArrayBuffer>,
  { path, file }: NamedFile,
  begin: number,
): Promise<Uint8Array<ArrayBuffer>> {
  const maxReadBytes = 2 ** 30;
  for (let numBytesRead = 0; numBytesRead < bytes.length; ) {
    const { bytesRead } = await file.read(
      bytes,
      numBytesRead,
      Math.min(maxReadBytes, bytes.length - numBytesRead),
      begin + numBytesRead,
    );
    if (bytesRead === 0)
      throw new FileError({
        where: path,
        expected: `a file of at least ${begin + bytes.length} bytes`,
        received: `${begin + numBytesRead} bytes`,
        remedy: "do not modify the file while it is read; nothing was loaded",
      });
    numBytesRead += bytesRead;
  }
  return bytes;
}

function createTensor(
  path: string,
  { name, dtype: format, shape }: TensorEntry,
  bytes: Uint8Array<ArrayBuffer>,
): FileTensor {
  let values: Float32Array | undefined;
  return {
    format,
    shape,
    bytes,
    dtype: toDType(format),
    get values() {
      values ??= toNumbers(`${path}, tensor "${name}"`, format, bytes);
      return values;
    },
  };
}

/** Returns the dtype of a tensor on a device for a dtype of a file: float32 for those that devices do not support. */
export function toDType(format: string): DType {
  const dtypeEntry = Object.entries(dtypeNames).find(([, name]) => name === format);
  return (dtypeEntry?.[0] ?? "float32") as DType;
}
