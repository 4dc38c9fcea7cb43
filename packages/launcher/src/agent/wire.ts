/** A refused byte stream: the connection that it came over is closed. */
export class ProtocolError extends Error {
  override readonly name: string = "ProtocolError";
}

/** Ranks in order, as ranges of consecutive ones: `[[0, 4], [6, 1]]` is 0, 1, 2, 3, 6. */
export type RankRanges = readonly (readonly [first: number, count: number])[];

/** What a frame may hold, in bytes; ranks of a world are counted. */
export const LIMITS = {
  frame: 8_388_608,
  /** Of a connection without a valid hello yet. */
  hello: 4096,
  text: 2048,
  value: 65_536,
  ranks: 65_536,
} as const;

/** How one field is written. Memory is little-endian wherever Node runs. `minBytes` bounds the length of lists before anything is allocated. */
export interface Codec<T> {
  readonly minBytes: number;
  write(writer: ByteWriter, value: T): void;
  read(reader: ByteReader): T;
}

/** Little-endian bytes that grow. */
export class ByteWriter {
  #bytes = Buffer.allocUnsafe(256);
  #size = 0;

  /** Room for `count` more bytes; returns where they begin. */
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

  /** The memory to write into; valid until the next `reserve`. */
  get memory(): Buffer {
    return this.#bytes;
  }
}

/** Reads what a Writer wrote; every read is checked against the end. */
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

  /** The length of a list whose elements take `least` bytes or more. */
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

/** A list of i64, without an object for each. */
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

/** UTF-8, cut at `LIMITS.text` bytes when written. */
export const text: Codec<string> = {
  minBytes: 4,
  write: (writer, value) => writeBytes(writer, Buffer.from(value).subarray(0, LIMITS.text)),
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

/** The fields of a record, in the order of the codecs. */
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
