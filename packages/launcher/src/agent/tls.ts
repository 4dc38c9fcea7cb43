import { constants, hkdfSync } from "node:crypto";
import { once } from "node:events";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { connect, createServer, type Server, type TLSSocket } from "node:tls";
import { formatAddress, HandshakeError, type Listener, listeningPort, type Network, parseAddress } from "./network.ts";

/** Protocols of connections. All use one port, and ALPN (RFC 7301) selects the protocol in the handshake. */
export const TLS_PROTOCOLS = { agent: "mosaic-agent/1", store: "mosaic-store/1", node: "mosaic-node/1" } as const;
/** Name of a protocol in the TLS handshake (ALPN). */
export type TlsProtocol = (typeof TLS_PROTOCOLS)[keyof typeof TLS_PROTOCOLS];

/** Authenticates and encrypts with one shared secret, without certificates (RFC 4279, 5489, 7905). */
const TLS_CIPHER = "ECDHE-PSK-CHACHA20-POLY1305";
const TLS_VERSION = "TLSv1.2";
/** The identity is sent in clear text and therefore does not identify the job. */
const PSK_IDENTITY = "mosaic";

/** Time after which a connection without a complete handshake is closed. */
const HANDSHAKE_TIMEOUT_MS = 5000;
const HANDSHAKE_TIMEOUT_CODE = "ERR_TLS_HANDSHAKE_TIMEOUT";
/** Maximum number of concurrent handshakes. Further connections are closed at once. */
const MAX_HANDSHAKES = 2048;
const MAX_CONNECTIONS = 16_384;

/**
 * Derives the TLS key from a secret. It always has 32 bytes and cannot be used for other protocols that use the secret.
 */
function preSharedKey(secret: string): Buffer {
  return Buffer.from(hkdfSync("sha256", secret, "", "mosaic tls psk", 32));
}

const tlsSettings = {
  minVersion: TLS_VERSION,
  maxVersion: TLS_VERSION,
  ciphers: TLS_CIPHER,
  // Each connection has one handshake, without session resumption or renegotiation.
  secureOptions: constants.SSL_OP_NO_RENEGOTIATION | constants.SSL_OP_NO_TICKET,
} as const;

/** Address and secret of a TLS server. */
export interface TlsServerOptions {
  readonly secret: string;
  /** Default: the loopback interface. */
  readonly host?: string;
  /** Default 0: any free port. */
  readonly port?: number;
  /** Called when a connection was refused in its handshake. */
  readonly onRefused?: (remoteAddress: string, reason: string) => void;
}

/** A server on one port for several protocols, authenticated by the job's secret. */
export class TlsServer {
  readonly host: string;
  readonly #server: Server;
  readonly #onRefused: (remoteAddress: string, reason: string) => void;
  /** Sockets in their handshake, by remote address and port. */
  readonly #handshakes = new Map<string, Socket>();
  readonly #acceptCallbacks = new Map<string, (socket: TLSSocket) => void>();

  private constructor({ secret, host = "127.0.0.1", onRefused }: TlsServerOptions) {
    this.host = host;
    this.#onRefused = onRefused ?? ((): void => {});
    const psk = preSharedKey(secret);
    this.#server = createServer({
      ...tlsSettings,
      ALPNProtocols: Object.values(TLS_PROTOCOLS),
      handshakeTimeout: HANDSHAKE_TIMEOUT_MS,
      pskCallback: (_socket, identity) => (identity === PSK_IDENTITY ? psk : null),
    });
    this.#server.maxConnections = MAX_CONNECTIONS;
    this.#server.on("connection", (socket: Socket) => this.#limitHandshakes(socket));
    this.#server.on("secureConnection", (socket) => this.#dispatch(socket));
    this.#server.on("tlsClientError", (error: NodeJS.ErrnoException, socket) => {
      this.#onRefused(socket.remoteAddress ?? "unknown address", refusalReason(error));
      // After any other error Node itself closes the connection when the alert has been sent to the peer.
      if (error.code === HANDSHAKE_TIMEOUT_CODE) socket.destroy();
    });
  }

  /** Binds the port. Rejects with the system's error if that fails. */
  static async listen(options: TlsServerOptions): Promise<TlsServer> {
    const server = new TlsServer(options);
    server.#server.listen({ host: server.host, port: options.port ?? 0, backlog: 1024 });
    await once(server.#server, "listening");
    return server;
  }

  get port(): number {
    return listeningPort(this.#server);
  }

  /** `host:port` */
  get address(): string {
    return formatAddress(this.host, this.port);
  }

  /** Number of connections in their handshake. */
  get handshakes(): number {
    return this.#handshakes.size;
  }

  /** Accepts the connections of one protocol until the returned function is called. */
  serve(protocol: TlsProtocol, accept: (socket: TLSSocket) => void): () => void {
    this.#acceptCallbacks.set(protocol, accept);
    return () => {
      if (this.#acceptCallbacks.get(protocol) === accept) this.#acceptCallbacks.delete(protocol);
    };
  }

  /** Stops listening. Established connections remain open. */
  close(): void {
    for (const socket of this.#handshakes.values()) socket.destroy();
    this.#server.close();
  }

  #limitHandshakes(socket: Socket): void {
    // A reset before the handshake is reported by tlsClientError.
    if (this.#handshakes.size >= MAX_HANDSHAKES) return void socket.destroy();
    const peer = formatPeer(socket);
    this.#handshakes.set(peer, socket);
    socket.once("close", () => this.#handshakes.get(peer) === socket && this.#handshakes.delete(peer));
  }

  #dispatch(socket: TLSSocket): void {
    this.#handshakes.delete(formatPeer(socket));
    const accept = typeof socket.alpnProtocol === "string" ? this.#acceptCallbacks.get(socket.alpnProtocol) : undefined;
    socket.on("error", () => {});
    // An orderly close, because the peer has not yet read the end of the handshake.
    if (accept === undefined) return void socket.end(() => socket.destroy());
    accept(socket.setNoDelay(true));
  }
}

const formatPeer = ({ remoteAddress, remotePort }: Socket): string => `${remoteAddress} ${remotePort}`;

/** Returns the reason of a failed handshake, for the server's messages. */
function refusalReason({ code = "" }: NodeJS.ErrnoException): string {
  if (code === "ERR_SSL_DECRYPTION_FAILED_OR_BAD_RECORD_MAC") return "the shared secrets do not match";
  if (code === HANDSHAKE_TIMEOUT_CODE) return `no TLS handshake within ${HANDSHAKE_TIMEOUT_MS / 1000} s`;
  return `the TLS handshake failed (${code || "unknown error"})`;
}

/** Options of a TLS client. */
export interface TlsClientOptions {
  readonly secret: string;
  readonly protocol: TlsProtocol;
}

/**
 * Connects to a TlsServer. Rejects with HandshakeError if the shared secrets do not match or the peer does not support
 * the protocol, else with the system's error.
 */
export async function connectTls(address: string, { secret, protocol }: TlsClientOptions): Promise<TLSSocket> {
  const psk = preSharedKey(secret);
  const socket = connect({
    ...parseAddress(address),
    ...tlsSettings,
    ALPNProtocols: [protocol],
    pskCallback: () => ({ psk, identity: PSK_IDENTITY }),
    // There is no certificate to check: a peer that completes the handshake has the secret.
    checkServerIdentity: () => undefined,
  });
  return new Promise((resolve, reject) => {
    const fail = (error: Error): void => {
      clearTimeout(timer);
      socket.destroy();
      reject(error);
    };
    const timer = setTimeout(
      () =>
        fail(
          new HandshakeError("peer", `${address}: the TLS handshake timed out after ${HANDSHAKE_TIMEOUT_MS / 1000} s`),
        ),
      HANDSHAKE_TIMEOUT_MS,
    );
    socket.on("error", (error: NodeJS.ErrnoException) => fail(clientError(address, error)));
    socket.once("close", () =>
      fail(new HandshakeError("peer", `${address}: the peer closed the connection during the TLS handshake`)),
    );
    socket.once("secureConnect", () => {
      clearTimeout(timer);
      socket.setNoDelay(true);
      resolve(socket);
    });
  });
}

function clientError(address: string, error: NodeJS.ErrnoException): Error {
  const { code = "" } = error;
  if (code === "ERR_SSL_SSLV3_ALERT_BAD_RECORD_MAC" || code === "ERR_SSL_TLSV1_ALERT_DECRYPT_ERROR")
    return new HandshakeError(
      "secret",
      `${address}: connection refused: the shared secrets do not match; set the same MOSAIC_TOKEN_FILE or MOSAIC_TOKEN on all nodes`,
    );
  if (code.startsWith("ERR_SSL"))
    return new HandshakeError(
      "peer",
      `${address}: the TLS handshake failed (${code}); check that the same version of Mosaic is listening at this address`,
    );
  return error;
}

/** Options of the network `tls`. */
export type TlsOptions = TlsServerOptions;

/**
 * Creates a network for agents of several hosts: TLS 1.2 with a pre-shared key, `ECDHE-PSK-CHACHA20-POLY1305`. All
 * agents of a job have the same secret. With a different secret the handshake fails.
 *
 * @example
 * ```ts
 * import { randomBytes } from "node:crypto";
 * import { once } from "node:events";
 * import { tlsNetwork } from "@mosaic/launcher/agent";
 * const network = tlsNetwork({ secret: randomBytes(32).toString("hex") });
 * const { address, close } = await network.listen((stream) => stream.end("sealed"));
 * const stream = await network.connect(address);
 * const [chunk] = await once(stream, "data");
 * String(chunk); // => "sealed"
 * close();
 * ```
 */
export function tlsNetwork(options: TlsOptions): Network {
  return {
    async listen(accept) {
      const server = await TlsServer.listen(options);
      server.serve(TLS_PROTOCOLS.agent, accept);
      return { address: server.address, close: () => server.close() };
    },
    connect: (address) => connectTls(address, { secret: options.secret, protocol: TLS_PROTOCOLS.agent }),
  };
}

/** Creates the network of an agent that shares a port with other protocols. */
export function sharedTlsNetwork(server: TlsServer, secret: string): Network {
  return {
    async listen(accept: (stream: Duplex) => void): Promise<Listener> {
      return { address: server.address, close: server.serve(TLS_PROTOCOLS.agent, accept) };
    },
    connect: (address) => connectTls(address, { secret, protocol: TLS_PROTOCOLS.agent }),
  };
}
