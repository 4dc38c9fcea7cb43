import { closeSync, fstatSync, openSync, readSync, statSync } from "node:fs";
import {
  defineOptions,
  DisposedError,
  expectValue,
  formatValue,
  option,
  OptionError,
  type OptionsOf,
} from "@mosaic/core";
import { describeOtherFile } from "../safetensors/file-kind.ts";
import { checkPath, FileError } from "../safetensors/format.ts";

/** A range of tokens. */
export interface TokenSpan {
  readonly tokens: ArrayLike<number>;
  /** Ends of documents within the range, ascending. The last token of a document has the index end − 1. */
  readonly ends: readonly number[];
}

/** Documents of tokens, one after another, which a DataLoader packs into rows. */
export interface TokenSource {
  /** Number of tokens of all documents. */
  readonly length: number;
  /** Reads `count` tokens from `start` on. */
  read(start: number, count: number): TokenSpan;
}

/** The largest token allowed. Integers up to it are exact in float32. */
const MAX_TOKEN = 2 ** 24;

function checkTokens(where: string, tokens: ArrayLike<number>): void {
  for (let i = 0; i < tokens.length; i++) {
    const token: unknown = tokens[i];
    if (Number.isSafeInteger(token) && (token as number) >= 0 && (token as number) <= MAX_TOKEN) continue;
    throw new OptionError({
      where: `${where}[${i}]`,
      expected: "an integer from 0 to 2²⁴",
      received: formatValue(token),
    });
  }
}

/**
 * Creates a source of documents in memory, each an array of tokens.
 *
 * @example
 * ```ts
 * import { tokenArrays } from "@mosaic/nn";
 * const source = tokenArrays([[5, 6, 7], new Uint16Array([8, 9])]);
 * source.length; // => 5
 * source.read(1, 3).ends; // => [2]
 * ```
 * @throws OptionError for a token that is not an integer from 0 to 2²⁴.
 */
export function tokenArrays(documents: readonly ArrayLike<number>[]): TokenSource {
  expectValue("tokenArrays", Array.isArray(documents), "an array of documents", documents);
  for (const [i, documentTokens] of documents.entries()) {
    const isArrayLike =
      typeof documentTokens === "object" && documentTokens !== null && Number.isSafeInteger(documentTokens.length);
    expectValue(`tokenArrays: documents[${i}]`, isArrayLike, "an array of tokens", documentTokens);
    checkTokens(`tokenArrays: documents[${i}]`, documentTokens);
  }
  const length = documents.reduce((sum, each) => sum + each.length, 0);
  const tokens = new Uint32Array(length);
  const ends: number[] = [];
  let end = 0;
  for (const documentTokens of documents) {
    tokens.set(documentTokens, end);
    end += documentTokens.length;
    if (documentTokens.length > 0) ends.push(end);
  }
  return {
    length,
    read(start, count) {
      checkSpan("tokenArrays: read", { start, count }, length);
      const endPosition = start + count;
      const firstDocument = lowerBound(ends, start + 1);
      return {
        tokens: tokens.subarray(start, endPosition),
        ends: ends.slice(firstDocument, lowerBound(ends, endPosition + 1)).map((each) => each - start),
      };
    },
  };
}

/** Returns the index of the first element that is not less than `value`. */
function lowerBound(sortedValues: readonly number[], value: number): number {
  let [low, high] = [0, sortedValues.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sortedValues[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

function checkSpan(where: string, { start, count }: { start: number; count: number }, length: number): void {
  const isValidSpan = Number.isSafeInteger(start) && Number.isSafeInteger(count) && start >= 0 && count >= 0;
  expectValue(where, isValidSpan && start + count <= length, `[start, count] within the ${length} tokens`, [
    start,
    count,
  ]);
}

export const tokenFileOptions = defineOptions("tokenFile", {
  /** Data type of a token in the file, little-endian. Default "uint16". */
  dtype: option.oneOf(["uint16", "uint32"], { default: "uint16" }),
  /** The token that ends every document and is part of it. Default: the file is one document. */
  separator: option.integer({ min: 0, optional: true }),
});
/** Format of a token file. */
export type TokenFileOptions = OptionsOf<typeof tokenFileOptions>;

/**
 * Opens a file of tokens without a header, such as nanoGPT's train.bin. Only the ranges that are read are loaded into
 * memory; caching of the file is left to the operating system. Disposing the source closes the file.
 *
 * @example
 * ```ts
 * import { writeFileSync } from "node:fs";
 * import { tokenFile } from "@mosaic/nn";
 * const path = `/tmp/mosaic-tokens-${process.pid}.bin`;
 * writeFileSync(path, new Uint16Array([5, 6, 0, 8, 9, 0]));
 * using source = tokenFile(path, { separator: 0 });
 * source.length; // => 6
 * source.read(1, 4).ends; // => [2]
 * ```
 * @throws OptionError for a file whose size is not a multiple of the token size; a FileError, whose `cause` is the
 * system's error, if it cannot be opened. After disposal, `read` throws a DisposedError.
 */
export function tokenFile(path: string, options?: TokenFileOptions): TokenSource & Disposable {
  checkPath("tokenFile", path);
  const { dtype, separator } = tokenFileOptions.parse(options);
  const bytes = dtype === "uint16" ? 2 : 4;
  const { file, size } = openTokenFile(path);
  if (size % bytes !== 0) {
    closeSync(file);
    throw new OptionError({
      where: `tokenFile: ${path}`,
      expected: `a file size that is a multiple of ${bytes} bytes`,
      received: `${size} bytes`,
    });
  }
  const length = size / bytes;
  // After the file is closed, its descriptor may refer to another file.
  let isClosed = false;
  return {
    length,
    read(start, count) {
      if (isClosed) {
        throw new DisposedError({
          where: `tokenFile: ${path}`,
          expected: "a source that is not disposed",
          received: "a disposed one",
        });
      }
      checkSpan(`tokenFile: ${path}`, { start, count }, length);
      const buffer = Buffer.alloc(count * bytes);
      readFully({ path, file }, buffer, start * bytes);
      const tokens = Uint32Array.from({ length: count }, (_, i) =>
        bytes === 2 ? buffer.readUInt16LE(2 * i) : buffer.readUInt32LE(4 * i),
      );
      if (bytes === 4) checkTokens(`tokenFile: ${path}: tokens from ${start}`, tokens);
      const ends: number[] = [];
      for (let i = 0; i < count; i++) if (tokens[i] === separator) ends.push(i + 1);
      return { tokens, ends };
    },
    [Symbol.dispose]() {
      if (isClosed) return;
      isClosed = true;
      closeSync(file);
    },
  };
}

/** Opens a file and returns its descriptor and size. Throws a FileError unless it is a file that can be read. */
function openTokenFile(path: string): { readonly file: number; readonly size: number } {
  let received: string | undefined;
  let cause: unknown;
  try {
    // Before it is opened, because opening a FIFO waits for a process that writes to it.
    received = describeOtherFile(statSync(path));
    if (received === undefined) {
      const file = openSync(path, "r");
      return { file, size: fstatSync(file).size };
    }
  } catch (error) {
    received = (error as Error).message;
    cause = error;
  }
  const remedy = "correct the path, or the permissions of the file";
  throw new FileError({ where: `tokenFile: ${path}`, expected: "a file of tokens", received, remedy }, { cause });
}

function readFully({ path, file }: { path: string; file: number }, buffer: Buffer, position: number): void {
  for (let numBytesRead = 0; numBytesRead < buffer.length; ) {
    const count = readSync(file, buffer, numBytesRead, buffer.length - numBytesRead, position + numBytesRead);
    expectValue(`tokenFile: ${path}`, count > 0, `${buffer.length} bytes at byte offset ${position}`, numBytesRead);
    numBytesRead += count;
  }
}
