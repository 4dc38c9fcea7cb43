import { truncateUtf8 } from "../utf8.ts";

/** Error of invalid data from a peer. The connection is closed. */
export class ProtocolError extends Error {
  override readonly name: string = "ProtocolError";
}

/** A list of ranks as ranges of consecutive ranks: `[[0, 4], [6, 1]]` is 0, 1, 2, 3, 6. */
export type RankRanges = readonly (readonly [first: number, count: number])[];

/** Limits of frames and their fields in bytes, and the maximum number of ranks in a world. */
export const LIMITS = {
  frame: 8_388_608,
  /** Maximum frame of a connection that has not sent a valid hello yet. */
  hello: 4096,
  text: 2048,
  value: 65_536,
  ranks: 65_536,
} as const;

/**
 * Encoding of one field. Memory is little-endian on all platforms of Node. `minBytes` bounds the length of lists before
 * memory is allocated.
 */
export interface Codec<T> {
  readonly minBytes: number;
  write(writer: ByteWriter, value: T): void;
  read(reader: ByteReader): T;
}

/** Writes little-endian data into a buffer that grows. */
export class ByteWriter {
  #bytes = Buffer.allocUnsafe(256);
  #size = 0;

  /** Reserves `count` more bytes and returns their offset. */
  reserve(count: number): number {
    const offset = this.#size;
    this.#size += count;
    if (this.#size > this.#bytes.length) {
      const grownBuffer = Buffer.allocUnsafe(Math.max(2 * this.#bytes.length, this.#size));
      this.#bytes.copy(grownBuffer, 0, 0, offset);
      this.#bytes = grownBuffer;
    }
    return offset;
  }

  get bytes(): Buffer {
    return this.#bytes.subarray(0, this.#size);
  }

  /** The buffer to write into. Valid until the next `reserve`. */
  get memory(): Buffer {
    return this.#bytes;
  }
}

/** Reads data written by a ByteWriter. Every read is checked against the end of the data. */
export class ByteReader {
  readonly #bytes: Buffer;
  #offset = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get remainingBytes(): number {
    return this.#bytes.length - this.#offset;
  }

  readBytes(count: number): Buffer {
    if (count > this.remainingBytes)
      throw new ProtocolError(
        `truncated frame: expected a field of ${count} bytes, received ${this.remainingBytes} bytes`,
      );
    this.#offset += count;
    return this.#bytes.subarray(this.#offset - count, this.#offset);
  }

  /** Reads the length of a list whose elements have at least `minBytes` bytes each. */
  count(minBytes: number): number {
    const count = this.readBytes(4).readUInt32LE();
    if (count * minBytes > this.remainingBytes)
      throw new ProtocolError(
        `expected a list that fits in its frame, received a list of ${count} elements of ${minBytes} or more bytes ` +
          `in a frame with ${this.remainingBytes} more bytes`,
      );
    return count;
  }
}

export const u8: Codec<number> = fixedSizeCodec(
  1,
  (bytes, value, offset) => bytes.writeUInt8(value, offset),
  (bytes) => bytes.readUInt8(),
);

export const u32: Codec<number> = fixedSizeCodec(
  4,
  (bytes, value, offset) => bytes.writeUInt32LE(value, offset),
  (bytes) => bytes.readUInt32LE(),
);

export const i32: Codec<number> = fixedSizeCodec(
  4,
  (bytes, value, offset) => bytes.writeInt32LE(value, offset),
  (bytes) => bytes.readInt32LE(),
);

export const u64: Codec<bigint> = fixedSizeCodec(
  8,
  (bytes, value, offset) => bytes.writeBigUInt64LE(value, offset),
  (bytes) => bytes.readBigUInt64LE(),
);

export const i64: Codec<bigint> = fixedSizeCodec(
  8,
  (bytes, value, offset) => bytes.writeBigInt64LE(value, offset),
  (bytes) => bytes.readBigInt64LE(),
);

/** A list of i64 as a typed array. */
export const i64Array: Codec<BigInt64Array> = {
  minBytes: 4,
  write(writer, values) {
    u32.write(writer, values.length);
    const offset = writer.reserve(values.byteLength);
    Buffer.from(values.buffer, values.byteOffset, values.byteLength).copy(writer.memory, offset);
  },
  read(reader) {
    const count = reader.count(8);
    const values = new BigInt64Array(count);
    reader.readBytes(8 * count).copy(Buffer.from(values.buffer));
    return values;
  },
};

function fixedSizeCodec<T>(
  minBytes: number,
  write: (bytes: Buffer, value: T, offset: number) => void,
  read: (bytes: Buffer) => T,
): Codec<T> {
  return {
    minBytes,
    write(writer, value) {
      const offset = writer.reserve(minBytes);
      write(writer.memory, value, offset);
    },
    read: (reader) => read(reader.readBytes(minBytes)),
  };
}

/** UTF-8 text, truncated to at most `LIMITS.text` bytes of whole characters when written. */
export const text: Codec<string> = {
  minBytes: 4,
  write: (writer, value) => writeBytes(writer, truncateUtf8(Buffer.from(value), LIMITS.text)),
  read: (reader) => readBytes(reader, LIMITS.text).toString(),
};

export const bytes: Codec<Buffer> = {
  minBytes: 4,
  write: writeBytes,
  read: (reader) => Buffer.from(readBytes(reader, LIMITS.value)),
};

function writeBytes(writer: ByteWriter, value: Buffer): void {
  u32.write(writer, value.length);
  const offset = writer.reserve(value.length);
  value.copy(writer.memory, offset);
}

function readBytes(reader: ByteReader, maxBytes: number): Buffer {
  const length = reader.count(1);
  if (length > maxBytes)
    throw new ProtocolError(`expected a field of at most ${maxBytes} bytes, received ${length} bytes`);
  return reader.readBytes(length);
}

export const rankRanges: Codec<RankRanges> = {
  minBytes: 4,
  write(writer, value) {
    u32.write(writer, value.length);
    for (const [first, count] of value) {
      u32.write(writer, first);
      u32.write(writer, count);
    }
  },
  read(reader) {
    let total = 0;
    return Array.from({ length: reader.count(8) }, () => {
      const [first, count] = [u32.read(reader), u32.read(reader)];
      total += count;
      if (count === 0 || first + count > LIMITS.ranks || total > LIMITS.ranks)
        throw new ProtocolError(
          `expected non-empty ranges of ranks below ${LIMITS.ranks}, ${LIMITS.ranks} ranks or fewer in total, ` +
            `received ${count} ranks starting at rank ${first}, ${total} ranks in total`,
        );
      return [first, count] as const;
    });
  },
};

/** The codecs of a record's fields, in their order in the encoding. */
export type FieldCodecs<T> = { readonly [K in keyof T]-?: Codec<T[K]> };

export function record<T extends object>(fieldCodecs: FieldCodecs<T>): Codec<T> {
  const fields = Object.entries(fieldCodecs) as [keyof T & string, Codec<unknown>][];
  return {
    minBytes: fields.reduce((sum, [, codec]) => sum + codec.minBytes, 0),
    write(writer, value) {
      for (const [name, codec] of fields) codec.write(writer, value[name]);
    },
    read(reader) {
      const value: Partial<Record<keyof T, unknown>> = {};
      for (const [name, codec] of fields) value[name] = codec.read(reader);
      return value as T;
    },
  };
}

export function list<T>(element: Codec<T>): Codec<readonly T[]> {
  return {
    minBytes: 4,
    write(writer, values) {
      u32.write(writer, values.length);
      for (const value of values) element.write(writer, value);
    },
    read: (reader) => Array.from({ length: reader.count(element.minBytes) }, () => element.read(reader)),
  };
}
