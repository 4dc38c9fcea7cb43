import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer, Server, type Socket } from "node:net";
import { argument, type ArgumentKind, mismatch } from "../arguments.ts";
import { formatAddress, listeningPort } from "../agent/network.ts";
import { TLS_PROTOCOLS, type TlsServer } from "../agent/tls.ts";
import { isSameSecret } from "../secret.ts";
import { createStoreState, runRequest, type StoreState } from "./operations.ts";
import {
  encodeFrame,
  type Frame,
  FrameReader,
  type Header,
  PROTOCOL_VERSION,
  STORE_LIMITS,
  StoreError,
} from "./protocol.ts";
import type { CancelCallback } from "./table.ts";

/** Run id and port of a store. */
export interface StoreServerOptions {
  readonly runId: string;
  /** Default 0: any free port. The port stays bound from the start, so that no other process can take it. */
  readonly port?: number;
}

/** Options of a store that shares a port with other protocols of a job on several nodes. */
export interface SharedStoreOptions {
  readonly runId: string;
  readonly server: TlsServer;
  /** The job's secret. */
  readonly token: string;
}

const portKind: ArgumentKind = {
  expected: "a port from 0 to 65535",
  accepts: (value) => Number.isInteger(value) && (value as number) >= 0 && (value as number) <= 65_535,
};

function checkOptions(options: StoreServerOptions): StoreServerOptions {
  const checkArgument = (name: string, kind: ArgumentKind, value: unknown): void => {
    const mismatchText = mismatch(kind, value);
    if (mismatchText !== undefined) throw new StoreError("REQUEST", `StoreServer.listen: ${name}: ${mismatchText}`);
  };
  checkArgument("options", argument.options, options);
  checkArgument("runId", argument.string, options.runId);
  if (options.port !== undefined) checkArgument("port", portKind, options.port);
  return options;
}

/**
 * The job's key-value store, with one table per attempt, protected by a token. In a job on one node it listens on the
 * loopback interface. On several nodes it is one of the protocols of the job's TLS server.
 */
export class StoreServer implements AsyncDisposable {
  /** Token that clients must send: 32 random bytes in hex, or the secret of the job. */
  readonly token: string;
  readonly host: string;
  readonly #runId: string;
  readonly #server: Server | TlsServer;
  readonly #connections = new Set<Connection>();
  #stopServing: () => void = () => {};
  #attempt = 0;
  #state: StoreState = createStoreState();

  private constructor(runId: string, sharedOptions?: SharedStoreOptions) {
    this.#runId = runId;
    this.token = sharedOptions?.token ?? randomBytes(32).toString("hex");
    this.host = sharedOptions?.server.host ?? "127.0.0.1";
    if (sharedOptions !== undefined) {
      this.#server = sharedOptions.server;
      this.#stopServing = sharedOptions.server.serve(TLS_PROTOCOLS.store, (socket) => this.#accept(socket));
      return;
    }
    const server = createServer((socket) => this.#accept(socket));
    server.maxConnections = STORE_LIMITS.connections;
    this.#server = server;
  }

  /** Creates a store on a TLS server that already listens. */
  static share(options: SharedStoreOptions): StoreServer {
    return new StoreServer(options.runId, options);
  }

  /** Binds the port. Rejects with the system's error (EADDRINUSE, EACCES) if that fails. */
  static async listen(options: StoreServerOptions): Promise<StoreServer> {
    const { runId, port = 0 } = checkOptions(options);
    const store = new StoreServer(runId);
    const server = store.#server as Server;
    server.listen({ host: store.host, port, backlog: 1024 });
    await once(server, "listening");
    return store;
  }

  get port(): number {
    return this.#server instanceof Server ? listeningPort(this.#server) : this.#server.port;
  }

  /** `host:port`, or `tls://host:port`, as in MOSAIC_STORE. */
  get address(): string {
    const address = formatAddress(this.host, this.port);
    return this.#server instanceof Server ? address : `tls://${address}`;
  }

  /** Starts an attempt with an empty table, and disconnects the clients of earlier attempts. */
  beginAttempt(attempt: number): void {
    this.#attempt = attempt;
    this.#state = createStoreState();
    for (const connection of this.#connections) if (!connection.isAdmittedTo(this.#state)) connection.close();
  }

  async close(): Promise<void> {
    this.#stopServing();
    for (const connection of this.#connections) connection.close();
    if (!(this.#server instanceof Server) || !this.#server.listening) return;
    const closeEvent = once(this.#server, "close");
    this.#server.close();
    await closeEvent;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #accept(socket: Socket): void {
    if (this.#connections.size >= STORE_LIMITS.connections) return void socket.destroy();
    const connection = new Connection(socket, (hello) => this.#authenticate(hello));
    this.#connections.add(connection);
    socket.on("close", () => this.#connections.delete(connection));
  }

  #authenticate(hello: Header): StoreState {
    if (hello.op !== "hello")
      throw new StoreError("AUTH", `store: expected a hello frame first, received op ${JSON.stringify(hello.op)}`);
    if (!isSameSecret(hello.token, this.token))
      throw new StoreError("AUTH", "store: invalid token; send the content of the MOSAIC_TOKEN_FILE file");
    if (hello.version !== PROTOCOL_VERSION)
      throw mismatchError(
        "protocol version",
        String(PROTOCOL_VERSION),
        hello.version,
        "use the same version of Mosaic for the launcher and the ranks",
      );
    if (hello.run !== this.#runId)
      throw mismatchError("run", this.#runId, hello.run, "check MOSAIC_RUN_ID and MOSAIC_STORE");
    if (hello.attempt !== this.#attempt)
      throw mismatchError(
        "attempt",
        String(this.#attempt),
        hello.attempt,
        "this rank belongs to an attempt that has ended",
      );
    return this.#state;
  }
}

const mismatchError = (subject: string, expected: string, received: unknown, remedy: string): StoreError =>
  new StoreError(
    "MISMATCH",
    `store: ${subject} mismatch: expected ${expected}, received ${JSON.stringify(received)} from the client; ${remedy}`,
  );

/** Checks a hello. Returns the state that the client may use, or throws StoreError. */
type AuthenticateHello = (hello: Header) => StoreState;

/** With more unread bytes than this, no further requests of the client are handled until it has read its replies. */
const PAUSE_UNREAD_BYTES = 16 * 1024 * 1024;
/** Maximum number of unread bytes. A client that reads deferred replies too slowly is disconnected beyond it. */
const MAX_UNREAD_BYTES = 64 * 1024 * 1024;

/** One client of the store, from hello to close. */
class Connection {
  readonly #socket: Socket;
  readonly #authenticate: AuthenticateHello;
  readonly #reader = new FrameReader();
  readonly #pending = new Map<unknown, CancelCallback>();
  #state: StoreState | undefined;

  constructor(socket: Socket, authenticate: AuthenticateHello) {
    this.#socket = socket;
    this.#authenticate = authenticate;
    this.#reader.maxHeaderBytes = STORE_LIMITS.helloHeader;
    this.#reader.maxPayloadBytes = 0;
    const timer = setTimeout(() => {
      if (this.#state === undefined)
        this.#endWithError(
          0,
          new StoreError("AUTH", `store: timed out after ${STORE_LIMITS.handshakeMs} ms waiting for the hello frame`),
        );
    }, STORE_LIMITS.handshakeMs);
    socket.setNoDelay(true);
    socket.on("data", (chunk: Buffer) => this.#receive(chunk));
    // The connection of a killed rank is often reset. "close" follows.
    socket.on("error", () => {});
    socket.on("close", () => {
      clearTimeout(timer);
      for (const cancel of this.#pending.values()) cancel();
      this.#pending.clear();
    });
  }

  /** Whether this client was admitted to `state`. */
  isAdmittedTo(state: StoreState): boolean {
    return this.#state === state;
  }

  /** Drops the connection. */
  close(): void {
    this.#socket.destroy();
  }

  #receive(chunk: Buffer): void {
    try {
      for (const frame of this.#reader.push(chunk)) {
        if (this.#socket.destroyed || this.#socket.writableEnded) return;
        if (this.#state === undefined) this.#handleHello(frame.header);
        else this.#handleRequest(this.#state, frame);
        if (this.#socket.writableLength > PAUSE_UNREAD_BYTES) return this.#pauseUntilDrained();
      }
    } catch (error) {
      this.#endWithError(0, toStoreError(error));
    }
  }

  /** Stops reading until all replies have been written. The reader keeps the requests that have already arrived. */
  #pauseUntilDrained(): void {
    this.#socket.pause();
    this.#socket.once("drain", () => {
      this.#socket.resume();
      this.#receive(Buffer.alloc(0));
    });
  }

  #handleHello(header: Header): void {
    this.#state = this.#authenticate(header);
    this.#reader.maxHeaderBytes = STORE_LIMITS.header;
    this.#reader.maxPayloadBytes = 2 * STORE_LIMITS.value;
    this.#send({ id: header.id ?? 0, ok: true });
  }

  #handleRequest(state: StoreState, { header, payload }: Frame): void {
    const { id } = header;
    if (this.#pending.has(id))
      throw new StoreError("PROTOCOL", `store: id: expected one of no pending request, received ${JSON.stringify(id)}`);
    const sendReply = (reply: Header, bytes?: Buffer): void => {
      this.#pending.get(id)?.();
      this.#pending.delete(id);
      this.#send({ ...reply, id }, bytes);
      hasReplied = true;
    };
    let hasReplied = false;
    const reject = (error: StoreError): void => sendReply({ ok: false, code: error.code, error: error.message });
    const reply = (fields: Header, bytes?: Buffer): void => sendReply({ ...fields, ok: true }, bytes);
    try {
      const cancel = runRequest(state, { header, payload, reply, reject });
      if (hasReplied) cancel?.();
      else if (cancel !== undefined) this.#pending.set(id, cancel);
    } catch (error) {
      reject(toStoreError(error));
    }
  }

  #send(header: Header, payload?: Buffer): void {
    if (this.#socket.destroyed || this.#socket.writableEnded) return;
    this.#socket.write(encodeFrame(header, payload));
    if (this.#socket.writableLength > MAX_UNREAD_BYTES) this.#socket.destroy();
  }

  #endWithError(id: unknown, error: StoreError): void {
    this.#send({ id, ok: false, code: error.code, error: error.message });
    this.#socket.end(() => this.#socket.destroy());
  }
}

/** Returns a StoreError. Any other error is a bug of the launcher and is thrown. */
function toStoreError(error: unknown): StoreError {
  if (error instanceof StoreError) return error;
  throw error;
}
