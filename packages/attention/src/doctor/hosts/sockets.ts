// Measures plain TCP sockets between two hosts: whether a port is open, latency, bandwidth, and the clock offset.
import { timingSafeEqual } from "node:crypto";
import { connect, createServer, type Server, type Socket } from "node:net";

const CONNECT_TIMEOUT_MS = 3000;
const STALL_TIMEOUT_MS = 5000;
const PING_COUNT = 200;
/** Size of the server's reply to a ping: nanoseconds of CLOCK_MONOTONIC, and milliseconds since the epoch. */
const PONG_BYTES = 16;
const TRIAL_BYTES = 2 ** 20;
const MAX_TRANSFER_BYTES = 2 ** 28;
/** Target duration of a bandwidth measurement, in seconds. */
const TARGET_TRANSFER_SECONDS = 0.4;
const payloadChunk = Buffer.alloc(2 ** 18);

/**
 * The address on which a host listens. The nonce authenticates hosts of the job: it is shared only through the job's
 * store.
 */
export interface SocketAddress {
  readonly address: string;
  readonly port: number;
  readonly nonce: string;
}

/**
 * The offset of a peer's clock. `error` is its uncertainty in milliseconds: half of the shortest round trip plus 1 ms.
 */
export interface ClockOffset {
  /** Milliseconds by which the peer's wall clock is ahead of this host's. */
  readonly wallClockOffsetMs: number;
  readonly error: number;
}

/** The measured link from one host to another. */
export interface SocketLink {
  /** One-way latency in seconds: half of the median round trip. */
  readonly latency: number;
  /** Bytes per second. */
  readonly bandwidth: number;
  readonly clock: ClockOffset;
}

/** A failed measurement: no connection ("connect"), no data ("ping"), or only small messages ("transfer") arrive. */
export interface SocketFailure {
  readonly phase: "connect" | "ping" | "transfer";
  readonly reason: string;
}

/**
 * Starts a server that replies to the measurements of other hosts.
 *
 * @throws the system's error if no port of the range is free.
 */
export async function startServer(address: string, nonce: string, ports?: readonly [number, number]): Promise<Server> {
  const server = createServer((socket) => serveConnection(socket, nonce));
  const [firstPort, lastPort] = ports ?? [0, 0];
  for (let port = firstPort; ; port++) {
    try {
      await new Promise<void>((resolve, reject) => {
        server.once("error", reject);
        server.listen(port, address, resolve);
      });
      return server;
    } catch (error) {
      if (port >= lastPort || (error as NodeJS.ErrnoException).code !== "EADDRINUSE") throw error;
    }
  }
}

/** Serves one connection. It begins with the nonce and the number of payload bytes; 0 for pings. */
function serveConnection(socket: Socket, nonce: string): void {
  const header = Buffer.alloc(nonce.length + 8);
  let [headerBytesRead, expectedPayloadBytes, payloadBytesReceived] = [0, -1, 0];
  socket.setNoDelay(true);
  socket.setTimeout(2 * STALL_TIMEOUT_MS, () => socket.destroy());
  socket.on("error", () => socket.destroy());
  socket.on("data", (data: Buffer) => {
    const headerBytes = data.copy(header, headerBytesRead);
    headerBytesRead += headerBytes;
    if (headerBytesRead < header.length) return;
    if (expectedPayloadBytes < 0) {
      if (!timingSafeEqual(header.subarray(0, nonce.length), Buffer.from(nonce))) {
        socket.destroy();
        return;
      }
      expectedPayloadBytes = header.readDoubleLE(nonce.length);
    }
    const payloadBytes = data.length - headerBytes;
    if (expectedPayloadBytes === 0) {
      for (let pingIndex = 0; pingIndex < payloadBytes; pingIndex++) socket.write(createPong());
      return;
    }
    payloadBytesReceived += payloadBytes;
    if (payloadBytesReceived >= expectedPayloadBytes) socket.end(Buffer.alloc(1));
  });
}

function createPong(): Buffer {
  const pongMessage = Buffer.alloc(PONG_BYTES);
  pongMessage.writeBigInt64LE(process.hrtime.bigint());
  pongMessage.writeDoubleLE(Date.now(), 8);
  return pongMessage;
}

/** Measures the link to a host that listens. No other measurement should run on either host at the same time. */
export async function measureSocket(target: SocketAddress): Promise<SocketLink | SocketFailure> {
  let phase: SocketFailure["phase"] = "connect";
  try {
    using pingClient = await ProbeClient.open(target, 0);
    phase = "ping";
    const { latency, clock } = await measurePings(pingClient);
    phase = "transfer";
    const trialSeconds = await timeTransfer(target, TRIAL_BYTES);
    const bytes = Math.round(Math.min(MAX_TRANSFER_BYTES, (TRIAL_BYTES / trialSeconds) * TARGET_TRANSFER_SECONDS));
    const bandwidth = bytes > TRIAL_BYTES ? bytes / (await timeTransfer(target, bytes)) : TRIAL_BYTES / trialSeconds;
    return { latency, bandwidth, clock };
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    return { phase, reason: code ?? message };
  }
}

async function measurePings(client: ProbeClient): Promise<Pick<SocketLink, "latency" | "clock">> {
  const samples: { readonly milliseconds: number; readonly wallClockOffsetMs: number }[] = [];
  for (let i = 0; i < PING_COUNT; i++) {
    const [sentTime, sentDate] = [performance.now(), Date.now()];
    client.socket.write(Buffer.alloc(1));
    const pongMessage = await client.read(PONG_BYTES);
    const milliseconds = performance.now() - sentTime;
    samples.push({ milliseconds, wallClockOffsetMs: pongMessage.readDoubleLE(8) - sentDate - milliseconds / 2 });
  }
  samples.sort((a, b) => a.milliseconds - b.milliseconds);
  const [fastestPing] = samples as [(typeof samples)[0]];
  const median = samples[PING_COUNT / 2]!.milliseconds;
  // Date.now has a resolution of 1 ms on both sides.
  const clock = { wallClockOffsetMs: fastestPing.wallClockOffsetMs, error: fastestPing.milliseconds / 2 + 1 };
  return { latency: median / 2 / 1000, clock };
}

/** Returns the seconds until a host has received `bytes` bytes. */
async function timeTransfer(target: SocketAddress, bytes: number): Promise<number> {
  using client = await ProbeClient.open(target, bytes);
  const startTime = performance.now();
  for (let remainingBytes = bytes; remainingBytes > 0; remainingBytes -= payloadChunk.length) {
    await client.write(remainingBytes < payloadChunk.length ? payloadChunk.subarray(0, remainingBytes) : payloadChunk);
  }
  await client.read(1);
  return (performance.now() - startTime) / 1000;
}

/** A connection on which every operation has a timeout. */
class ProbeClient implements Disposable {
  readonly socket: Socket;
  #receivedBytes: Buffer = Buffer.alloc(0);
  #failure: Error | undefined;
  #wakeReader = (): void => {};

  private constructor(socket: Socket) {
    this.socket = socket.setNoDelay(true);
    const fail = (error: Error): void => {
      this.#failure ??= error;
      this.#wakeReader();
    };
    socket.on("error", fail).on("close", () => fail(new Error("the connection was closed")));
    socket.on("drain", () => this.#wakeReader());
    socket.on("data", (data: Buffer) => {
      this.#receivedBytes = Buffer.concat([this.#receivedBytes, data]);
      this.#wakeReader();
    });
  }

  static async open({ address, port, nonce }: SocketAddress, bytes: number): Promise<ProbeClient> {
    const socket = connect({ host: address, port });
    const client = new ProbeClient(socket);
    let isConnected = false;
    socket.once("connect", () => {
      isConnected = true;
      client.#wakeReader();
    });
    try {
      await client.#waitUntil(() => isConnected, CONNECT_TIMEOUT_MS);
    } catch (error) {
      socket.destroy();
      throw error;
    }
    const header = Buffer.alloc(nonce.length + 8);
    header.write(nonce);
    header.writeDoubleLE(bytes, nonce.length);
    socket.write(header);
    return client;
  }

  async read(bytes: number): Promise<Buffer> {
    await this.#waitUntil(() => this.#receivedBytes.length >= bytes, STALL_TIMEOUT_MS);
    const requestedData = this.#receivedBytes.subarray(0, bytes);
    this.#receivedBytes = this.#receivedBytes.subarray(bytes);
    return requestedData;
  }

  async write(data: Buffer): Promise<void> {
    if (!this.socket.write(data)) await this.#waitUntil(() => !this.socket.writableNeedDrain, STALL_TIMEOUT_MS);
  }

  async #waitUntil(isDone: () => boolean, milliseconds: number): Promise<void> {
    const deadline = performance.now() + milliseconds;
    while (!isDone()) {
      if (this.#failure) throw this.#failure;
      const remainingMs = deadline - performance.now();
      if (remainingMs <= 0) throw new Error(`timed out after ${milliseconds / 1000} s`);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, remainingMs);
        this.#wakeReader = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  [Symbol.dispose](): void {
    this.socket.destroy();
  }
}
