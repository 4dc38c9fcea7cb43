import { type FileHandle, open } from "node:fs/promises";
import type { DType, HostTensor } from "@mosaic/core";
import { toNumbers } from "./convert.ts";
import { checkPath, type Entry, FileError, formatNames, maxHeader, parseHeader } from "./format.ts";

/** A tensor of a file: its bytes, and its values if they are asked for. */
export interface FileTensor extends HostTensor {
  /** The format's own name: "F32", "BF16", "I64", …; `dtype` is "float32" for those that devices lack. */
  readonly format: string;
  readonly bytes: Uint8Array<ArrayBuffer>;
}

/** What a safetensors file holds. */
export interface SafetensorsFile {
  readonly tensors: ReadonlyMap<string, FileTensor>;
  readonly metadata: ReadonlyMap<string, string>;
}

/**
 * Reads a safetensors file, whoever wrote it, and checks all of it: a header that is cut short, that overlaps itself, has
 * holes, or whose shapes and bytes disagree is refused.
 *
 * @throws FileError that reports what is wrong; the system's error if the file cannot be opened.
 */
export async function readSafetensors(path: string): Promise<SafetensorsFile> {
  checkPath("readSafetensors", path);
  const file = await open(path, "r");
  try {
    const { size } = await file.stat();
    const start = 8 + (await headerLength(path, file, size));
    const header = parseHeader(path, decoded(path, await bytesAt(file, 8, start)), size - start);
    const tensors = new Map<string, FileTensor>();
    for (const entry of header.entries) {
      tensors.set(entry.name, tensorOf(path, entry, await bytesAt(file, start + entry.begin, start + entry.end)));
    }
    return { tensors, metadata: header.metadata };
  } finally {
    await file.close();
  }
}

async function headerLength(path: string, file: FileHandle, size: number): Promise<number> {
  const begin = new DataView((await bytesAt(file, 0, Math.min(8, size))).buffer);
  const length = size < 8 ? Number.NaN : Number(begin.getBigUint64(0, true));
  if (length <= maxHeader && 8 + length <= size) return length;
  throw new FileError({
    where: path,
    expected: "a safetensors file: 8 bytes of length and a header within the file",
    received: size < 8 ? `${size} bytes` : `a header of ${length} bytes in a file of ${size}`,
    remedy: "the file was cut short, or is no safetensors; nothing was loaded",
  });
}

function decoded(path: string, bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (cause) {
    throw new FileError({ where: path, expected: "a header of UTF-8", remedy: "the file is damaged" }, { cause });
  }
}

/** Bytes [begin, end) in memory of their own: aligned for any element, and no more than one tensor at a time. */
async function bytesAt(file: FileHandle, begin: number, end: number): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = new Uint8Array(end - begin);
  const most = 2 ** 30;
  for (let done = 0; done < bytes.length; ) {
    const { bytesRead } = await file.read(bytes, done, Math.min(most, bytes.length - done), begin + done);
    if (bytesRead === 0)
      throw new FileError({ where: "read", expected: `${end} bytes`, received: String(begin + done) });
    done += bytesRead;
  }
  return bytes;
}

function tensorOf(path: string, { name, dtype: format, shape }: Entry, bytes: Uint8Array<ArrayBuffer>): FileTensor {
  let values: Float32Array | undefined;
  return {
    format,
    shape,
    bytes,
    dtype: dtypeOf(format),
    get values() {
      values ??= toNumbers(`${path}, tensor "${name}"`, format, bytes);
      return values;
    },
  };
}

function dtypeOf(format: string): DType {
  const known = Object.entries(formatNames).find(([, name]) => name === format);
  return (known?.[0] ?? "float32") as DType;
}
