/** The frames of docs/control-plane.md. One table defines how they are encoded, decoded and checked. */
import {
  bytes,
  type Codec,
  i32,
  i64,
  i64Array,
  type FieldCodecs,
  LIMITS,
  list,
  ProtocolError,
  ByteReader,
  type RankRanges,
  record,
  rankRanges,
  text,
  u8,
  u32,
  u64,
  ByteWriter,
} from "./wire.ts";

/** The first field of `hello`: "MoC1", little-endian. */
export const MAGIC = 0x3143_6f4d;
/** Version of the protocol of docs/control-plane.md. Ranks and agents of another version are refused. */
export const PROTOCOL_VERSION = 2;

/** Roles of the sender of a `hello`. */
export const ROLES = { rank: 0, agent: 1, observer: 2 } as const;

/** Codes of failures that agents send, as in mosaic/stream.h. Codes of failures of ranks are forwarded unchanged. */
export const FAILURE_CODES = { peerLost: 2, timeout: 3, mismatch: 4 } as const;

export interface JoinMember {
  readonly rank: number;
  readonly pid: number;
  /** Index in the frame's `hosts`; 0 in a frame that a rank sends. */
  readonly host: number;
}

export interface CallRecord {
  readonly index: bigint;
  readonly history: bigint;
  readonly description: string;
}

/**
 * Metrics of a rank for monitors. Counts are since the rank connected, times are in nanoseconds, memory is in bytes.
 */
export interface RankMetrics {
  /** Time of the sample, CLOCK_MONOTONIC of the rank's host. */
  readonly time: bigint;
  /**
   * Number of steps marked by `markStep`. `step` is the duration of the last one, `sinceStep` the time since the last
   * mark.
   */
  readonly steps: bigint;
  readonly step: bigint;
  readonly sinceStep: bigint;
  /** Time for which the rank's device has waited for collectives. */
  readonly waiting: bigint;
  readonly bytesSent: bigint;
  readonly bytesReceived: bigint;
  /** Device memory at the last mark. */
  readonly reserved: bigint;
  readonly peak: bigint;
  /** Resident memory of the process. */
  readonly resident: bigint;
}

/** The common position of some ranks. The fields are as in control_plane.h. */
export interface RankPosition {
  readonly ranks: RankRanges;
  readonly activity: number;
  readonly group: bigint;
  readonly sequence: bigint;
  readonly index: bigint;
  readonly operation: string;
  readonly description: string;
  readonly last: string;
  /** One element if metrics were requested and the rank is connected, else empty. */
  readonly metrics: readonly RankMetrics[];
}

interface ExitedRanks {
  readonly ranks: RankRanges;
  readonly last: string;
}

interface LostRanks {
  readonly ranks: RankRanges;
  readonly reason: string;
}

interface WorldScoped {
  /** The world's number on this connection; 0 between a rank and its agent. */
  readonly world: number;
}

/** The fields of each frame. */
export interface Frames {
  hello: { magic: number; version: number; secret: string; role: number; agent: number; host: string; address: string };
  accept: { heartbeatMs: number; heartbeatTimeoutMs: number };
  redirect: { address: string };
  heartbeat: object;
  join: WorldScoped & {
    name: string;
    attempt: number;
    size: number;
    timeoutMs: number;
    remainingMs: number;
    hosts: readonly { readonly agent: number; readonly name: string }[];
    members: readonly JoinMember[];
  };
  cancelJoin: WorldScoped & { ranks: RankRanges };
  memberTable: WorldScoped & {
    hosts: readonly string[];
    members: readonly { readonly host: number; readonly pid: number }[];
  };
  refused: WorldScoped & { code: number; message: string };
  closed: WorldScoped & { reason: string };
  put: WorldScoped & { key: string; value: Buffer };
  get: WorldScoped & { key: string };
  value: WorldScoped & { key: string; value: Buffer };
  leave: WorldScoped & { exits: readonly ExitedRanks[] };
  exited: WorldScoped & { ranks: RankRanges };
  lost: WorldScoped & { losses: readonly LostRanks[] };
  failed: WorldScoped & { rank: number; code: number; message: string };
  call: WorldScoped & { group: bigint; index: bigint; history: bigint; rank: number; ranks: RankRanges };
  callLogQuery: WorldScoped & { query: number; rank: number; group: bigint };
  callLogReply: WorldScoped & { query: number; rank: number; calls: readonly CallRecord[] };
  mismatch: WorldScoped & { group: bigint; message: string; ranks: RankRanges };
  split: WorldScoped & {
    group: bigint;
    index: bigint;
    ranks: RankRanges;
    colors: readonly { readonly rank: number; readonly color: bigint }[];
  };
  colors: WorldScoped & { group: bigint; index: bigint; ranks: RankRanges; colors: BigInt64Array };
  positionsRequest: WorldScoped & { request: bigint; metrics: number; ranks: RankRanges };
  positionsQuery: WorldScoped & { query: number; timeoutMs: number; metrics: number; ranks: RankRanges };
  positionsReply: WorldScoped & { query: number; positions: readonly RankPosition[] };
  positions: WorldScoped & { request: bigint; positions: readonly RankPosition[] };
  register: {
    version: number;
    launcher: string;
    runtime: string;
    job: string;
    nodeRank: number;
    minNodes: number;
    maxNodes: number;
    nproc: number;
    host: string;
    command: string;
    digest: string;
  };
  rendezvousStatus: { message: string };
  assign: {
    run: string;
    attempt: number;
    worldSize: number;
    firstRank: number;
    groupRank: number;
    groupWorldSize: number;
  };
  clock: { time: bigint };
  failing: { attempt: number; rank: number };
  stop: { signal: number; outcome: number; reason: string };
  report: { attempt: number; rank: number; record: Buffer };
  ended: { attempt: number };
  outcome: { attempt: number; end: Buffer };
  world: WorldScoped & { name: string; attempt: number; size: number };
}

/** Name of a frame. */
export type Kind = keyof Frames;
/** A frame of one kind: its name and its fields. */
export type FrameOf<K extends Kind> = { readonly kind: K } & Readonly<Frames[K]>;
/** A frame of any kind. */
export type Frame = { [K in Kind]: FrameOf<K> }[Kind];
/** Frames that belong to a world. */
export type WorldKind = { [K in Kind]: Frames[K] extends WorldScoped ? K : never }[Kind];
export type WorldFrame = { [K in WorldKind]: FrameOf<K> }[WorldKind];

const hostsCodec = list(record({ agent: u32, name: text }));
const membersCodec = list(record<JoinMember>({ rank: u32, pid: i32, host: u32 }));
const callsCodec = list(record<CallRecord>({ index: u64, history: u64, description: text }));
const metrics = list(
  record<RankMetrics>({
    ...{ time: u64, steps: u64, step: u64, sinceStep: u64, waiting: u64 },
    ...{ bytesSent: u64, bytesReceived: u64, reserved: u64, peak: u64, resident: u64 },
  }),
);
const position = {
  activity: u8,
  group: u64,
  sequence: u64,
  index: u64,
  operation: text,
  description: text,
  last: text,
  metrics,
};
const positions = list(record<RankPosition>({ ranks: rankRanges, ...position }));
const world = u32;

/** For each kind, its number in the encoding and its fields in their order. */
const frameLayouts: { readonly [K in Kind]: readonly [type: number, fields: FieldCodecs<Frames[K]>] } = {
  hello: [1, { magic: u32, version: u32, secret: text, role: u8, agent: u32, host: text, address: text }],
  accept: [2, { heartbeatMs: u32, heartbeatTimeoutMs: u32 }],
  redirect: [3, { address: text }],
  heartbeat: [4, {}],
  join: [
    5,
    {
      world,
      name: text,
      attempt: u32,
      size: u32,
      timeoutMs: u32,
      remainingMs: u32,
      hosts: hostsCodec,
      members: membersCodec,
    },
  ],
  cancelJoin: [6, { world, ranks: rankRanges }],
  memberTable: [7, { world, hosts: list(text), members: list(record({ host: u32, pid: i32 })) }],
  refused: [8, { world, code: i32, message: text }],
  closed: [9, { world, reason: text }],
  put: [10, { world, key: text, value: bytes }],
  get: [11, { world, key: text }],
  value: [12, { world, key: text, value: bytes }],
  leave: [13, { world, exits: list(record<ExitedRanks>({ ranks: rankRanges, last: text })) }],
  exited: [14, { world, ranks: rankRanges }],
  lost: [15, { world, losses: list(record<LostRanks>({ ranks: rankRanges, reason: text })) }],
  failed: [16, { world, rank: u32, code: i32, message: text }],
  call: [17, { world, group: u64, index: u64, history: u64, rank: u32, ranks: rankRanges }],
  callLogQuery: [18, { world, query: u32, rank: u32, group: u64 }],
  callLogReply: [19, { world, query: u32, rank: u32, calls: callsCodec }],
  mismatch: [20, { world, group: u64, message: text, ranks: rankRanges }],
  split: [21, { world, group: u64, index: u64, ranks: rankRanges, colors: list(record({ rank: u32, color: i64 })) }],
  colors: [22, { world, group: u64, index: u64, ranks: rankRanges, colors: i64Array }],
  positionsRequest: [23, { world, request: u64, metrics: u8, ranks: rankRanges }],
  positionsQuery: [24, { world, query: u32, timeoutMs: u32, metrics: u8, ranks: rankRanges }],
  positionsReply: [25, { world, query: u32, positions }],
  positions: [26, { world, request: u64, positions }],
  register: [
    27,
    {
      ...{ version: u32, launcher: text, runtime: text, job: text, nodeRank: u32, minNodes: u32, maxNodes: u32 },
      ...{ nproc: u32, host: text, command: text, digest: text },
    },
  ],
  rendezvousStatus: [28, { message: text }],
  assign: [29, { run: text, attempt: u32, worldSize: u32, firstRank: u32, groupRank: u32, groupWorldSize: u32 }],
  clock: [30, { time: u64 }],
  failing: [31, { attempt: u32, rank: u32 }],
  stop: [32, { signal: u8, outcome: u8, reason: text }],
  report: [33, { attempt: u32, rank: u32, record: bytes }],
  ended: [34, { attempt: u32 }],
  outcome: [35, { attempt: u32, end: bytes }],
  world: [36, { world, name: text, attempt: u32, size: u32 }],
};

interface FrameCodec {
  readonly kind: Kind;
  readonly type: number;
  readonly body: Codec<object>;
}

const codecByKind = new Map<Kind, FrameCodec>();
const codecByType = new Map<number, FrameCodec>();
for (const [name, [type, fields]] of Object.entries(frameLayouts)) {
  const codec = { kind: name as Kind, type, body: record<object>(fields) };
  codecByKind.set(codec.kind, codec);
  codecByType.set(type, codec);
}

/** Encodes a frame, including its length. */
export function encode(frame: Frame): Buffer {
  const { type, body } = codecByKind.get(frame.kind) as FrameCodec;
  const writer = new ByteWriter();
  writer.reserve(4);
  u8.write(writer, type);
  body.write(writer, frame);
  writer.memory.writeUInt32LE(writer.bytes.length - 4, 0);
  return writer.bytes;
}

/** Returns a copy of an encoded frame with the world's number on another connection. */
export function withWorldNumber(encodedFrame: Buffer, worldNumber: number): Buffer {
  const copy = Buffer.from(encodedFrame);
  copy.writeUInt32LE(worldNumber, 5);
  return copy;
}

/** Returns an encoded frame, including its length, from the content. */
export function withLengthPrefix(content: Buffer): Buffer {
  const encodedFrame = Buffer.allocUnsafe(4 + content.length);
  encodedFrame.writeUInt32LE(content.length);
  content.copy(encodedFrame, 4);
  return encodedFrame;
}

/**
 * Returns the kind of a frame and its world's number, which is meaningful only for frames of a world; undefined if too
 * short.
 */
export function peekHeader(content: Buffer): { readonly kind: Kind; readonly world: number } | undefined {
  const kind = codecByType.get(content[0] as number)?.kind;
  return kind === undefined || content.length < 5 ? undefined : { kind, world: content.readUInt32LE(1) };
}

/** Decodes the content of a frame, without its length. Throws ProtocolError. */
export function decode(content: Buffer): Frame {
  const reader = new ByteReader(content);
  const type = u8.read(reader);
  const codec = codecByType.get(type);
  if (codec === undefined) throw new ProtocolError(`expected a known frame type, received ${type}`);
  const value = { kind: codec.kind, ...codec.body.read(reader) } as Frame;
  if (reader.remainingBytes > 0)
    throw new ProtocolError(
      `expected the end of the ${codec.kind} frame after its last field, received ${reader.remainingBytes} more bytes`,
    );
  return value;
}

/** Returns version and secret of a hello of any version; undefined for any other frame. */
export function peekHello(content: Buffer): { readonly version: number; readonly secret: string } | undefined {
  const reader = new ByteReader(content);
  if (u8.read(reader) !== frameLayouts.hello[0] || u32.read(reader) !== MAGIC) return undefined;
  return { version: u32.read(reader), secret: text.read(reader) };
}

/** Splits a byte stream into frames without their lengths. */
export class FrameReader {
  /** The maximum length of a frame at present. */
  limit: number = LIMITS.hello;
  #chunks: Buffer[] = [];
  #size = 0;

  push(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#size += chunk.length;
  }

  /** Returns the next complete frame, or undefined. Throws ProtocolError for an invalid length. */
  next(): Buffer | undefined {
    if (this.#size < 4) return undefined;
    if ((this.#chunks[0] as Buffer).length < 4) this.#join();
    const length = (this.#chunks[0] as Buffer).readUInt32LE();
    if (length === 0 || length > this.limit)
      throw new ProtocolError(`expected a frame of 1 to ${this.limit} bytes, received ${length} bytes`);
    if (this.#size < 4 + length) return undefined;
    if ((this.#chunks[0] as Buffer).length < 4 + length) this.#join();
    const joinedBytes = this.#chunks[0] as Buffer;
    const trailingBytes = joinedBytes.subarray(4 + length);
    if (trailingBytes.length > 0) this.#chunks[0] = trailingBytes;
    else this.#chunks.shift();
    this.#size -= 4 + length;
    return joinedBytes.subarray(4, 4 + length);
  }

  #join(): void {
    this.#chunks = [Buffer.concat(this.#chunks)];
  }
}
