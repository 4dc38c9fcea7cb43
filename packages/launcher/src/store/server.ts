import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer, type Server, type Socket } from "node:net";
import { sameSecret } from "../secret.ts";
import { Connection } from "./connection.ts";
import { emptySpace, type Space } from "./operations.ts";
import { type Header, LIMITS, PROTOCOL_VERSION, StoreError } from "./protocol.ts";

/** Where and for whom a store listens. */
export interface StoreServerOptions {
  readonly runId: string;
  /** 0, the default, takes any free port: held from the first moment, never probed and released. */
  readonly port?: number;
}

/** The job's key-value store: one table per attempt, on the loopback interface, behind a random token. */
export class StoreServer implements AsyncDisposable {
  /** What a client must send: 32 random bytes in hex. */
  readonly token: string = randomBytes(32).toString("hex");
  readonly host = "127.0.0.1";
  readonly #runId: string;
  readonly #server: Server;
  readonly #connections = new Set<Connection>();
  #attempt = 0;
  #space: Space = emptySpace();

  private constructor(options: StoreServerOptions) {
    this.#runId = options.runId;
    this.#server = createServer((socket) => this.#accept(socket));
    this.#server.maxConnections = LIMITS.connections;
  }

  /** Binds the port; rejects with the system's error (EADDRINUSE, EACCES) when it cannot. */
  static async listen(options: StoreServerOptions): Promise<StoreServer> {
    const store = new StoreServer(options);
    store.#server.listen({ host: store.host, port: options.port ?? 0, backlog: 1024 });
    await once(store.#server, "listening");
    return store;
  }

  get port(): number {
    const address = this.#server.address();
    if (address === null || typeof address === "string") throw new Error("the store is closed");
    return address.port;
  }

  /** `host:port`, as in MOSAIC_STORE. */
  get address(): string {
    return `${this.host}:${this.port}`;
  }

  /** Starts an attempt: an empty table, and clients of the last attempt are disconnected. */
  beginAttempt(attempt: number): void {
    this.#attempt = attempt;
    this.#space = emptySpace();
    for (const connection of this.#connections) if (!connection.uses(this.#space)) connection.close();
  }

  async close(): Promise<void> {
    if (!this.#server.listening) return;
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const connection of this.#connections) connection.close();
    await closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #accept(socket: Socket): void {
    const connection = new Connection(socket, (hello) => this.#authenticate(hello));
    this.#connections.add(connection);
    socket.on("close", () => this.#connections.delete(connection));
  }

  #authenticate(hello: Header): Space {
    if (hello.op !== "hello") throw new StoreError("AUTH", "store: the first frame must be a hello");
    if (!sameSecret(hello.token, this.token))
      throw new StoreError("AUTH", "store: wrong token; send the text of the file that MOSAIC_TOKEN_FILE names");
    if (hello.version !== PROTOCOL_VERSION)
      throw mismatchError("protocol version", String(PROTOCOL_VERSION), hello.version, "use one version of Mosaic");
    if (hello.run !== this.#runId)
      throw mismatchError("run", this.#runId, hello.run, "read MOSAIC_RUN_ID and MOSAIC_STORE");
    if (hello.attempt !== this.#attempt)
      throw mismatchError(
        "attempt",
        String(this.#attempt),
        hello.attempt,
        "this rank belongs to an attempt that has ended",
      );
    return this.#space;
  }
}

const mismatchError = (what: string, expected: string, received: unknown, remedy: string): StoreError =>
  new StoreError("MISMATCH", `store: ${what} is ${expected}, the client sent ${JSON.stringify(received)}; ${remedy}`);
