/**
 * The store's wire protocol, version 1.
 *
 * A TCP connection carries frames in both directions:
 *
 *     u32 big-endian H │ H bytes: JSON header, UTF-8 │ header.bytes bytes: payload (absent means 0)
 *
 * The first frame of a client is the hello. Until it is accepted, the server reads no other frame, and it closes the
 * connection after 5 s. `token` is the text of the file MOSAIC_TOKEN_FILE, without the line end.
 *
 *     → {"id":0,"op":"hello","version":1,"run":MOSAIC_RUN_ID,"attempt":MOSAIC_ATTEMPT,"token":"…"}
 *     ← {"id":0,"ok":true}
 *
 * Later requests have an `id` chosen by the client, and may be sent without waiting for replies. A reply has the id of
 * its request. Replies may arrive in any order, because some requests wait. `timeout` is in milliseconds, 300 000 when
 * absent.
 *
 *     op       request fields (payload)                 reply fields (payload)
 *     set      key (value)                              –
 *     get      key, wait?: boolean, timeout?            found: boolean (value)
 *     add      key, delta: integer                      value: integer      stored as decimal text; absent counts as 0
 *     cas      key, expected: n | null                  swapped: boolean, found: boolean (current value)
 *              (n bytes expected value, then the new one; null: the key must be absent)
 *     wait     keys: string[], timeout?                 –                   when every key exists
 *     delete   key                                      deleted: boolean
 *     barrier  key, count, member?: string, timeout?    –                   when `count` callers have arrived; reusable
 *
 * A refusal is {"id":…,"ok":false,"code":StoreCode,"error":"what to do about it"}. After AUTH, MISMATCH and PROTOCOL the
 * server closes the connection.
 *
 * Each attempt of a job has separate keys: the server keeps one table per attempt and closes the connections of an
 * attempt that has ended, so that a restarted job never reads values of an earlier attempt. Limits: STORE_LIMITS below.
 */
export const PROTOCOL_VERSION = 1;

/** Limits of requests to a store. Sizes in bytes, times in milliseconds. */
export const STORE_LIMITS = {
  key: 8_192,
  value: 8_388_608,
  keys: 65_536,
  total: 536_870_912,
  header: 1_048_576,
  helloHeader: 4_096,
  connections: 4096,
  handshakeMs: 5000,
  defaultTimeoutMs: 300_000,
} as const;

/** Reason for which the store has refused a request. */
export type StoreCode = "AUTH" | "MISMATCH" | "PROTOCOL" | "REQUEST" | "LIMIT" | "TIMEOUT" | "CLOSED";

/** A refusal of the store, or the loss of the connection to it (`CLOSED`). */
export class StoreError extends Error {
  override readonly name: string = "StoreError";
  readonly code: StoreCode;
  /** Path, in the folder of the project, and anchor of the documentation with causes and remedies. */
  readonly help: string = "node_modules/@mosaic/launcher/dist/troubleshooting.md#storeerror";
  constructor(code: StoreCode, message: string) {
    super(message);
    this.code = code;
  }
}

/** The JSON part of a frame. */
export type Header = Readonly<Record<string, unknown>>;

/** One decoded message. */
export interface Frame {
  readonly header: Header;
  readonly payload: Buffer;
}

/** Encodes one frame. `header.bytes` is set to the size of the payload. */
export function encodeFrame(header: Header, payload?: Uint8Array): Buffer {
  const bytes = payload?.byteLength ?? 0;
  const json = Buffer.from(JSON.stringify(bytes > 0 ? { ...header, bytes } : header));
  const length = Buffer.alloc(4);
  length.writeUInt32BE(json.length);
  return Buffer.concat(payload === undefined ? [length, json] : [length, json, payload]);
}

/** Splits a byte stream into frames. Throws StoreError("PROTOCOL") for an invalid frame. */
export class FrameReader {
  #chunks: Buffer[] = [];
  #size = 0;
  #headerLength: number | undefined;
  #header: Header | undefined;
  /** Maximum size of a header at present. A server raises it when the hello was accepted. */
  maxHeaderBytes: number = STORE_LIMITS.header;
  /** Maximum size of a payload at present. `cas` has two values. */
  maxPayloadBytes: number = 2 * STORE_LIMITS.value;

  /** Adds the next bytes and yields all frames that are complete. */
  *push(chunk: Buffer): Generator<Frame> {
    this.#chunks.push(chunk);
    this.#size += chunk.length;
    for (let frame = this.#next(); frame !== undefined; frame = this.#next()) yield frame;
  }

  #next(): Frame | undefined {
    if (this.#headerLength === undefined) {
      const length = this.#takeBytes(4)?.readUInt32BE();
      if (length === undefined) return undefined;
      if (length > this.maxHeaderBytes) throw lengthError("header", length, this.maxHeaderBytes);
      this.#headerLength = length;
    }
    if (this.#header === undefined) {
      const json = this.#takeBytes(this.#headerLength);
      if (json === undefined) return undefined;
      this.#header = parseHeader(json);
    }
    const payload = this.#takeBytes(payloadLength(this.#header, this.maxPayloadBytes));
    if (payload === undefined) return undefined;
    const frame = { header: this.#header, payload };
    this.#headerLength = undefined;
    this.#header = undefined;
    return frame;
  }

  /**
   * Removes and returns exactly `count` bytes, or undefined until they have arrived. Chunks are joined only once, even
   * if small.
   */
  #takeBytes(count: number): Buffer | undefined {
    if (this.#size < count) return undefined;
    const joinedBytes = this.#chunks.length === 1 ? (this.#chunks[0] as Buffer) : Buffer.concat(this.#chunks);
    const remainder = joinedBytes.subarray(count);
    this.#chunks = remainder.length > 0 ? [remainder] : [];
    this.#size = remainder.length;
    return joinedBytes.subarray(0, count);
  }
}

function parseHeader(json: Buffer): Header {
  let value: unknown;
  try {
    value = JSON.parse(json.toString());
  } catch {
    throw new StoreError(
      "PROTOCOL",
      "store: frame header: expected JSON, received other data; connect only Mosaic store clients to this port",
    );
  }
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new StoreError(
      "PROTOCOL",
      `store: frame header: expected a JSON object, received ${JSON.stringify(value).slice(0, 40)}`,
    );
  return value as Header;
}

function payloadLength(header: Header, max: number): number {
  const bytes = header.bytes ?? 0;
  if (typeof bytes !== "number" || !Number.isInteger(bytes) || bytes < 0)
    throw new StoreError(
      "PROTOCOL",
      `store: frame header: bytes: expected an integer ≥ 0, received ${JSON.stringify(bytes)}`,
    );
  if (bytes > max) throw lengthError("payload", bytes, max);
  return bytes;
}

const lengthError = (framePart: string, length: number, max: number): StoreError =>
  new StoreError("PROTOCOL", `store: a ${framePart} of ${length} bytes exceeds the limit of ${max} bytes`);
