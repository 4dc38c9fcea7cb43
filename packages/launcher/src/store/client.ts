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

/** Prefix of the address of a store behind TLS, as in a job on several nodes. */
const TLS_SCHEME = "tls://";

/** Address and credentials of the store. Defaults are the variables that the launcher sets for this rank. */
export interface StoreOptions {
  /** `host:port`, or `tls://host:port`. Default: MOSAIC_STORE. */
  readonly address?: string;
  /** The secret itself. Default: the text of the file MOSAIC_TOKEN_FILE. */
  readonly token?: string;
  /** Run id of the job. Default: MOSAIC_RUN_ID. */
  readonly runId?: string;
  /** Number of the attempt. Default: MOSAIC_ATTEMPT, or 0. */
  readonly attempt?: number;
}

/** Timeout in milliseconds. Default: five minutes. Infinity: no timeout. */
export interface WaitOptions {
  readonly timeoutMs?: number;
}

const timeoutKind: ArgumentKind = {
  expected: "milliseconds ≥ 0",
  accepts: (value) => typeof value === "number" && value >= 0,
};

/** Checks and returns the timeout. JSON would encode Infinity as null, which means five minutes, so it is replaced. */
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
 * Connects to the job's store. An idle client does not keep the process alive. A pending request does.
 *
 * @example
 * ```ts
 * import { connectStore, StoreServer } from "@mosaic/launcher";
 * await using server = await StoreServer.listen({ runId: "run-1" });
 * const { host, port, token } = server;
 * await using store = await connectStore({ address: `${host}:${port}`, token, runId: "run-1", attempt: 0 });
 * await store.set("lr", "0.1");
 * String(await store.get("lr")); // => "0.1"
 * await store.add("arrived"); // => 1
 * ```
 * @throws Rejects with StoreError: `AUTH` (wrong token), `MISMATCH` (other run, ended attempt, other version), `CLOSED`
 * (no server listens).
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

/** Client of the job's key-value store. Values are bytes. A string is stored as UTF-8. */
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

  /** Resolves to the value, or to undefined if the key is absent. */
  async get(key: string): Promise<Buffer | undefined> {
    const { header, payload } = await this.request({ op: "get", key });
    return header.found === true ? payload : undefined;
  }

  /** Waits until the key is set, and resolves to its value. Rejects with StoreError("TIMEOUT"). */
  async waitFor(key: string, options: WaitOptions = {}): Promise<Buffer> {
    return (await this.request({ op: "get", key, wait: true, timeout: resolveTimeout(options) })).payload;
  }

  /** Adds to a counter that starts at 0. Resolves to the sum. */
  async add(key: string, delta = 1): Promise<number> {
    return (await this.request({ op: "add", key, delta })).header.value as number;
  }

  /**
   * Sets `value` if the current value is `expected` (undefined: absent). Resolves to whether it was set, and the
   * current value.
   */
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

  /** Resolves when `count` callers have arrived at `key`. `member` names this caller in the message of a timeout. */
  async barrier(key: string, count: number, options: WaitOptions & { readonly member?: string } = {}): Promise<void> {
    const timeout = resolveTimeout(options);
    const { member } = options;
    // JSON would omit a function or a symbol.
    if (member !== undefined) checkArgument("member", argument.string, member);
    await this.request({ op: "barrier", key, count, member, timeout });
  }

  /** Closes the connection. Pending requests reject with StoreError("CLOSED"). */
  async close(): Promise<void> {
    this.#onConnectionLost("this client is closed");
    this.#socket.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Sends one request of the wire protocol. Resolves to its reply. */
  async request(header: Header, payload?: Uint8Array): Promise<Frame> {
    if (this.#connectionError !== undefined) throw this.#connectionError;
    const id = this.#nextId++;
    const frame = encodeRequest({ ...header, id }, payload);
    // The server would close the connection because of an oversized frame, and all other requests would fail.
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
    // A reply without a request is the reason why the server closes the connection.
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
