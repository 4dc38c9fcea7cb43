import { readFileSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { argument, type ArgumentKind, mismatch } from "../arguments.ts";
import { HandshakeError, parseAddress } from "../agent/network.ts";
import { connectTls, TLS_PROTOCOLS } from "../agent/tls.ts";
import {
  encodeFrame,
  type Frame,
  FrameReader,
  type Header,
  STORE_LIMITS,
  PROTOCOL_VERSION,
  type StoreCode,
  StoreError,
} from "./protocol.ts";

/** Before the address of a store behind TLS, as it is on several nodes. */
const TLS_SCHEME = "tls://";

/** Where the store is and how to be admitted. Everything defaults to what the launcher exported to this rank. */
export interface StoreOptions {
  /** `host:port`, or `tls://host:port`; MOSAIC_STORE. */
  readonly address?: string;
  /** The secret itself; default: the text of the file MOSAIC_TOKEN_FILE. */
  readonly token?: string;
  /** MOSAIC_RUN_ID. */
  readonly runId?: string;
  /** MOSAIC_ATTEMPT. */
  readonly attempt?: number;
}

/** How long to wait, in milliseconds; five minutes when absent, Infinity for as long as the job lasts. */
export interface WaitOptions {
  readonly timeoutMs?: number;
}

const timeoutKind: ArgumentKind = {
  expected: "milliseconds ≥ 0",
  accepts: (value) => typeof value === "number" && value >= 0,
};

/** JSON has no Infinity: it would be null, and mean five minutes. */
function resolveTimeout(options: WaitOptions): number | undefined {
  const { timeoutMs } = checkArgument("options", argument.options, options);
  if (timeoutMs !== undefined) checkArgument("timeoutMs", timeoutKind, timeoutMs);
  return timeoutMs === Number.POSITIVE_INFINITY ? Number.MAX_VALUE : timeoutMs;
}

function checkArgument<T>(name: string, kind: ArgumentKind, value: T): T {
  const mismatchText = mismatch(kind, value);
  if (mismatchText !== undefined) throw new StoreError("REQUEST", `store: ${name}: ${mismatchText}`);
  return value;
}

interface PendingRequest {
  resolve(frame: Frame): void;
  reject(error: StoreError): void;
}

/**
 * Connects to the job's store.
 *
 * Rejects with StoreError: `AUTH` (wrong token), `MISMATCH` (other run, ended attempt, other version), `CLOSED` (no server
 * listens). An idle client does not keep the process alive; a request under way does.
 */
export async function connectStore(options: StoreOptions = {}): Promise<Store> {
  const { address, ...hello } = resolveOptions(options);
  const store = new Store(await openSocket(address, hello.token), address);
  await store.request({ op: "hello", version: PROTOCOL_VERSION, ...hello });
  return store;
}

async function openSocket(address: string, secret: string): Promise<Socket> {
  if (!address.startsWith(TLS_SCHEME)) return connect(parseAddress(address));
  try {
    return await connectTls(address.slice(TLS_SCHEME.length), { secret, protocol: TLS_PROTOCOLS.store });
  } catch (error) {
    const isSecretMismatch = error instanceof HandshakeError && error.reason === "secret";
    throw new StoreError(isSecretMismatch ? "AUTH" : "CLOSED", `store at ${address}: ${(error as Error).message}`);
  }
}

/** The job's key-value store, as a rank sees it. Values are bytes; a string is stored as UTF-8. */
export class Store implements AsyncDisposable {
  readonly #socket: Socket;
  readonly #address: string;
  readonly #reader = new FrameReader();
  readonly #pending = new Map<number, PendingRequest>();
  #nextId = 0;
  #connectionError: StoreError | undefined;

  /** Use `connectStore`. */
  constructor(socket: Socket, address: string) {
    this.#socket = socket;
    this.#address = address;
    socket.setNoDelay(true);
    socket.on("data", (chunk: Buffer) => this.#receive(chunk));
    socket.on("error", (error) => this.#onConnectionLost(error.message));
    socket.on("close", () => this.#onConnectionLost("the store closed the connection; has the job ended?"));
  }

  async set(key: string, value: Uint8Array | string): Promise<void> {
    await this.request({ op: "set", key }, toBytes(value));
  }

  /** The value, or undefined when the key is absent. */
  async get(key: string): Promise<Buffer | undefined> {
    const { header, payload } = await this.request({ op: "get", key });
    return header.found === true ? payload : undefined;
  }

  /** The value, once it is set. Rejects with StoreError("TIMEOUT"). */
  async waitFor(key: string, options: WaitOptions = {}): Promise<Buffer> {
    return (await this.request({ op: "get", key, wait: true, timeout: resolveTimeout(options) })).payload;
  }

  /** Adds to a counter that starts at 0; resolves to the sum. */
  async add(key: string, delta = 1): Promise<number> {
    return (await this.request({ op: "add", key, delta })).header.value as number;
  }

  /** Sets `value` if the key holds `expected` (undefined: is absent); resolves to whether it did, and what it holds. */
  async compareAndSet(
    key: string,
    expected: Uint8Array | string | undefined,
    value: Uint8Array | string,
  ): Promise<{ readonly swapped: boolean; readonly current: Buffer | undefined }> {
    const expectedBytes = expected === undefined ? undefined : toBytes(expected);
    const payloads = Buffer.concat([expectedBytes ?? Buffer.alloc(0), toBytes(value)]);
    const { header, payload } = await this.request(
      { op: "cas", key, expected: expectedBytes?.length ?? null },
      payloads,
    );
    return { swapped: header.swapped === true, current: header.found === true ? payload : undefined };
  }

  /** Resolves when every key exists. Rejects with StoreError("TIMEOUT"), naming the missing ones. */
  async wait(keys: readonly string[], options: WaitOptions = {}): Promise<void> {
    await this.request({ op: "wait", keys, timeout: resolveTimeout(options) });
  }

  /** Resolves to whether the key existed. */
  async delete(key: string): Promise<boolean> {
    return (await this.request({ op: "delete", key })).header.deleted === true;
  }

  /** Resolves when `count` callers have arrived at `key`; `member` names this one in the message of a timeout. */
  async barrier(key: string, count: number, options: WaitOptions & { readonly member?: string } = {}): Promise<void> {
    await this.request({ op: "barrier", key, count, member: options.member, timeout: resolveTimeout(options) });
  }

  /** Ends the connection; whatever is still waiting rejects with StoreError("CLOSED"). */
  async close(): Promise<void> {
    this.#onConnectionLost("this client is closed");
    this.#socket.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Sends one request of the wire protocol and resolves to its reply. */
  async request(header: Header, payload?: Uint8Array): Promise<Frame> {
    if (this.#connectionError !== undefined) throw this.#connectionError;
    const id = this.#nextId++;
    const frame = encodeRequest({ ...header, id }, payload);
    // The server would end the connection, as it must with a stranger's, and every other request with it.
    const payloadBytes = payload?.byteLength ?? 0;
    const headerBytes = frame.length - payloadBytes;
    if (headerBytes > STORE_LIMITS.header || payloadBytes > 2 * STORE_LIMITS.value)
      throw new StoreError(
        "LIMIT",
        `store: ${String(header.op)}: expected a header of at most ${STORE_LIMITS.header} bytes and a payload of ` +
          `at most ${2 * STORE_LIMITS.value} bytes, received ${headerBytes} and ${payloadBytes} bytes`,
      );
    if (this.#pending.size === 0) this.#socket.ref();
    const reply = new Promise<Frame>((resolve, reject) => this.#pending.set(id, { resolve, reject }));
    this.#socket.write(frame);
    return reply;
  }

  #receive(chunk: Buffer): void {
    try {
      for (const frame of this.#reader.push(chunk)) this.#resolveReply(frame);
    } catch (error) {
      this.#onConnectionLost((error as Error).message);
      this.#socket.destroy();
    }
  }

  #resolveReply(frame: Frame): void {
    const { id, ok, code, error } = frame.header;
    const pending = this.#pending.get(id as number);
    this.#pending.delete(id as number);
    if (this.#pending.size === 0) this.#socket.unref();
    if (ok === true) return pending?.resolve(frame);
    const refusal = new StoreError(code as StoreCode, String(error));
    // What answers no request is why the server is about to close the connection.
    if (pending === undefined) this.#connectionError ??= refusal;
    else pending.reject(refusal);
  }

  #onConnectionLost(reason: string): void {
    this.#connectionError ??= new StoreError("CLOSED", `store at ${this.#address}: ${reason}`);
    for (const { reject } of this.#pending.values()) reject(this.#connectionError);
    this.#pending.clear();
  }
}

function toBytes(value: Uint8Array | string): Uint8Array {
  checkArgument("value", argument.bytesOrString, value);
  return typeof value === "string" ? Buffer.from(value) : value;
}

function encodeRequest(header: Header, payload: Uint8Array | undefined): Buffer {
  if (payload !== undefined) checkArgument("payload", argument.bytes, payload);
  try {
    return encodeFrame(header, payload);
  } catch (error) {
    throw new StoreError(
      "REQUEST",
      `store: cannot encode the ${String(header.op)} request as JSON: ${(error as Error).message}`,
    );
  }
}

const addressKind: ArgumentKind = {
  expected: "host:port or tls://host:port",
  accepts: (value) => typeof value === "string" && /.:\d+$/.test(value) && parseAddress(value).port <= 65_535,
};

function resolveOptions(options: StoreOptions): { address: string; token: string; run: string; attempt: number } {
  checkArgument("options", argument.options, options);
  const env = process.env;
  const address = options.address ?? env.MOSAIC_STORE;
  const token = options.token ?? (env.MOSAIC_TOKEN_FILE === undefined ? undefined : readToken(env.MOSAIC_TOKEN_FILE));
  const run = options.runId ?? env.MOSAIC_RUN_ID;
  if (address === undefined || token === undefined || run === undefined) {
    const variables = Object.entries({ MOSAIC_STORE: address, MOSAIC_TOKEN_FILE: token, MOSAIC_RUN_ID: run });
    const missingVariables = variables.filter(([, value]) => value === undefined).map(([name]) => name);
    throw new StoreError(
      "CLOSED",
      `connectStore: expected the environment variables MOSAIC_STORE, MOSAIC_TOKEN_FILE and MOSAIC_RUN_ID, received no ` +
        `${missingVariables.join(" and no ")}; start this program with mosaic-run, or pass address, token and runId`,
    );
  }
  const attempt = options.attempt ?? Number(env.MOSAIC_ATTEMPT ?? 0);
  checkArgument("address", addressKind, address);
  checkArgument("token", argument.string, token);
  checkArgument("runId", argument.string, run);
  return { address, token, run, attempt: checkArgument("attempt", argument.number, attempt) };
}

function readToken(path: string): string {
  try {
    return readFileSync(path, "utf8").trim();
  } catch (error) {
    const { message } = error as Error;
    throw new StoreError("CLOSED", `connectStore: MOSAIC_TOKEN_FILE cannot be read: ${message}; has the job ended?`);
  }
}
