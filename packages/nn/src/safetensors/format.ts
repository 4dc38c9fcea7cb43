import { type DType, MosaicError, type Shape, expectValue } from "@mosaic/core";

// The safetensors format (Hugging Face): 8 bytes, little-endian, the length N of the header; N bytes of JSON,
// { name: { dtype, shape, data_offsets: [begin, end] }, "__metadata__": { text } }; then the tensors' bytes,
// little-endian and row-major, which the offsets must cover without a hole or an overlap.

/** Bytes per element, for every dtype of the format whose elements are whole bytes. */
export const elementBytes: Readonly<Record<string, number>> = {
  F64: 8,
  F32: 4,
  F16: 2,
  BF16: 2,
  F8_E4M3: 1,
  F8_E5M2: 1,
  I64: 8,
  I32: 4,
  I16: 2,
  I8: 1,
  U64: 8,
  U32: 4,
  U16: 2,
  U8: 1,
  BOOL: 1,
};

/** The format's names of the dtypes that devices compute with. */
export const dtypeNames: Readonly<Record<DType, string>> = { float32: "F32", bfloat16: "BF16", float16: "F16" };

/** Maximum size of a header in bytes, as in the reference implementation. */
export const MAX_HEADER_BYTES = 100_000_000;

/** Dtype, shape and byte range of a tensor in a file. */
export interface TensorEntry {
  readonly name: string;
  readonly dtype: string;
  readonly shape: Shape;
  /** The byte range [begin, end), counted from the end of the header. */
  readonly begin: number;
  readonly end: number;
}

/** Contents of a header. */
export interface Header {
  /** In the order of their byte ranges. */
  readonly entries: readonly TensorEntry[];
  readonly metadata: ReadonlyMap<string, string>;
}

/**
 * Thrown if a file is missing, is a directory, a FIFO, a socket or a device, is damaged, has unexpected contents, or
 * cannot be written. Nothing was changed on any rank, unless the file changed or could not be read while its values were
 * loaded; then some tensors already have values of the file.
 */
export class FileError extends MosaicError {}

/** Parses a header. Checks its entries against each other and against the number of data bytes in the file. */
export function parseHeader(path: string, text: string, dataBytes: number): Header {
  const fields = parseFields(path, text);
  const metadata = parseMetadata(path, fields.get("__metadata__"));
  fields.delete("__metadata__");
  const entries = [...fields].map(([name, field]) => parseEntry(path, name, field));
  entries.sort((a, b) => a.begin - b.begin || a.end - b.end);
  let coveredBytes = 0;
  for (const { name, begin, end } of entries) {
    if (begin !== coveredBytes) {
      throw new FileError({
        where: path,
        expected: `tensor "${name}" to begin at byte ${coveredBytes}, the end of the previous tensor`,
        received: String(begin),
        remedy: "restore the file from a copy; nothing was loaded",
      });
    }
    coveredBytes = end;
  }
  if (coveredBytes === dataBytes) return { entries, metadata };
  throw new FileError({
    where: path,
    expected: `${coveredBytes} bytes of tensor data`,
    received: String(dataBytes),
    remedy: "restore the file from a copy; nothing was loaded",
  });
}

function parseFields(path: string, text: string): Map<string, unknown> {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw new FileError(
      {
        where: path,
        expected: "a safetensors header in JSON",
        received: (cause as Error).message,
        remedy: "pass a file in safetensors format, or restore it from a copy; nothing was loaded",
      },
      { cause },
    );
  }
  if (isRecord(json)) return new Map(Object.entries(json));
  throw new FileError({ where: path, expected: "a header that is a JSON object", received: text.slice(0, 40) });
}

function isRecord(x: unknown): x is Record<string, unknown> {
  return typeof x === "object" && x !== null && !Array.isArray(x);
}

function parseMetadata(path: string, field: unknown): ReadonlyMap<string, string> {
  if (field === undefined) return new Map();
  const metadataEntries = isRecord(field) ? Object.entries(field) : [["", undefined] as const];
  if (metadataEntries.every((pair): pair is [string, string] => typeof pair[1] === "string"))
    return new Map(metadataEntries);
  throw new FileError({ where: path, expected: "__metadata__ with string values", received: JSON.stringify(field) });
}

function parseEntry(path: string, name: string, field: unknown): TensorEntry {
  const { dtype, shape, data_offsets: offsets } = isRecord(field) ? field : {};
  const isValidEntry =
    typeof dtype === "string" &&
    isUnsignedIntegerArray(shape) &&
    isUnsignedIntegerArray(offsets) &&
    offsets.length === 2 &&
    offsets[0]! <= offsets[1]!;
  if (!isValidEntry) {
    throw new FileError({
      where: `${path}, tensor "${name}"`,
      expected: "dtype, shape and data_offsets [begin, end]",
      received: JSON.stringify(field)?.slice(0, 120) ?? "nothing",
      remedy: "restore the file from a copy; nothing was loaded",
    });
  }
  const bytesPerElement = Object.hasOwn(elementBytes, dtype) ? elementBytes[dtype] : undefined;
  if (bytesPerElement === undefined) {
    throw new FileError({
      where: `${path}, tensor "${name}"`,
      expected: `a dtype among ${Object.keys(elementBytes).join(", ")}`,
      received: dtype,
    });
  }
  const [begin, end] = offsets as [number, number];
  const bytes = shape.reduce((product, length) => product * length, bytesPerElement);
  if (end - begin === bytes && Number.isSafeInteger(bytes)) return { name, dtype, shape, begin, end };
  throw new FileError({
    where: `${path}, tensor "${name}"`,
    expected: `${bytes} bytes for ${dtype} [${shape.join(",")}]`,
    received: String(end - begin),
    remedy: "restore the file from a copy; nothing was loaded",
  });
}

function isUnsignedIntegerArray(x: unknown): x is readonly number[] {
  return Array.isArray(x) && x.every((each) => Number.isSafeInteger(each) && each >= 0);
}

/** Throws an OptionError unless `path` can be the path of a file. */
export function checkPath(where: string, path: unknown): void {
  expectValue(where, typeof path === "string" && path !== "" && !path.includes("\0"), "the path of a file", path);
}
