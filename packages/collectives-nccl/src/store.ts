import { readFileSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { CollectiveTimeoutError, MosaicError, OptionError } from "@mosaic/core";

/** What ranks need of a key-value store to find one another. The `Store` of "@mosaic/launcher" is one. */
export interface Store {
  set(key: string, value: string): Promise<void>;
  /** The value, once somebody has set it; rejects when that takes longer. */
  take(key: string, waiting: { readonly timeoutMs: number }): Promise<Uint8Array>;
}

interface Request {
  readonly op: string;
  /** Milliseconds that the answer may take. */
  readonly timeout?: number;
  readonly [field: string]: unknown;
}

interface Reply {
  readonly header: Readonly<Record<string, unknown>>;
  readonly payload: Buffer;
}

/** Connects to the store of the job that this rank belongs to, by what `mosaic-run` has put into the environment. */
export async function connectStore(): Promise<Store & AsyncDisposable> {
  const { MOSAIC_STORE, MOSAIC_TOKEN_FILE, MOSAIC_RUN_ID, MOSAIC_ATTEMPT } = process.env;
  if (!MOSAIC_STORE || !MOSAIC_TOKEN_FILE || !MOSAIC_RUN_ID) {
    throw new OptionError({
      where: "nccl collectives",
      expected: "a store to meet in",
      received: "no MOSAIC_STORE, MOSAIC_TOKEN_FILE and MOSAIC_RUN_ID in the environment",
      remedy: "start the ranks with mosaic-run, or pass nccl({ store })",
    });
  }
  const client = new Client(MOSAIC_STORE);
  const token = readFileSync(MOSAIC_TOKEN_FILE, "utf8").trim();
  await client.request({ op: "hello", version: 1, run: MOSAIC_RUN_ID, attempt: Number(MOSAIC_ATTEMPT ?? 0), token });
  return client;
}

/**
 * As much of the launcher's wire protocol, version 1, as it takes to set and to take: one request at a time. A frame is
 * a big-endian u32, as many bytes of JSON, and `bytes` more of payload.
 */
class Client implements Store, AsyncDisposable {
  readonly #address: string;
  readonly #socket: Socket;
  #received: Buffer = Buffer.alloc(0);
  #waiting: { resolve(reply: Reply): void; reject(error: Error): void } | undefined;
  #lost: string | undefined;
  #requests = 0;

  constructor(address: string) {
    const colon = address.lastIndexOf(":");
    this.#address = address;
    this.#socket = connect({ host: address.slice(0, colon), port: Number(address.slice(colon + 1)), noDelay: true });
    this.#socket.on("data", (chunk: Buffer) => this.#receive(chunk));
    this.#socket.on("error", (error) => this.#lose(error.message));
    this.#socket.on("close", () => this.#lose("it closed the connection"));
  }

  async set(key: string, value: string): Promise<void> {
    await this.request({ op: "set", key }, Buffer.from(value));
  }

  async take(key: string, { timeoutMs }: { readonly timeoutMs: number }): Promise<Uint8Array> {
    return (await this.request({ op: "get", key, wait: true, timeout: timeoutMs })).payload;
  }

  async request(header: Request, payload: Buffer = Buffer.alloc(0)): Promise<Reply> {
    const json = Buffer.from(JSON.stringify({ ...header, id: this.#requests++, bytes: payload.length }));
    const length = Buffer.alloc(4);
    length.writeUInt32BE(json.length);
    const reply = await new Promise<Reply>((resolve, reject) => {
      this.#waiting = { resolve, reject };
      if (this.#lost !== undefined) this.#lose(this.#lost);
      else this.#socket.write(Buffer.concat([length, json, payload]));
    });
    if (reply.header.ok === true) return reply;
    const where = `nccl: store at ${this.#address}`;
    if (reply.header.code !== "TIMEOUT") throw new MosaicError(`${where}: ${String(reply.header.error)}`);
    const limit = `${(header.timeout ?? 0) / 1000} s`;
    throw new CollectiveTimeoutError(
      `${where}: rank 0 did not come within ${limit}; start all ranks of one job together, or allow more by connectTimeout`,
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#socket.destroy();
  }

  #receive(chunk: Buffer): void {
    this.#received = Buffer.concat([this.#received, chunk]);
    if (this.#received.length < 4) return;
    const payloadAt = 4 + this.#received.readUInt32BE();
    if (this.#received.length < payloadAt) return;
    const header = JSON.parse(this.#received.subarray(4, payloadAt).toString()) as Reply["header"];
    const end = payloadAt + Number(header.bytes ?? 0);
    if (this.#received.length < end) return;
    const payload = this.#received.subarray(payloadAt, end);
    this.#received = this.#received.subarray(end);
    this.#waiting?.resolve({ header, payload });
    this.#waiting = undefined;
  }

  #lose(why: string): void {
    this.#lost = why;
    this.#waiting?.reject(new MosaicError(`nccl: store at ${this.#address}: ${why}; did the job end?`));
    this.#waiting = undefined;
  }
}
