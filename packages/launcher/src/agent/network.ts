import { once } from "node:events";
import { connect, createServer, type Server } from "node:net";
import type { Duplex } from "node:stream";

/**
 * Network between agents, which provides byte streams: `tcpNetwork` on one host, `tlsNetwork` between hosts, or a
 * custom one.
 */
export interface Network {
  /** Accepts connections of other agents. Resolves to the address to which they connect. */
  listen(accept: (stream: Duplex) => void): Promise<Listener>;
  /** Connects to an address. Rejects if the connection fails. */
  connect(address: string): Promise<Duplex>;
}

/** A listening network of an agent. `address` is the one to which other agents connect. */
export interface Listener {
  readonly address: string;
  close(): void;
}

/**
 * Error of a handshake: the shared secrets do not match (`secret`), or the peer does not support the protocol (`peer`).
 */
export class HandshakeError extends Error {
  override readonly name: string = "HandshakeError";
  readonly reason: "secret" | "peer";
  constructor(reason: "secret" | "peer", message: string) {
    super(message);
    this.reason = reason;
  }
}

/**
 * Creates a network over TCP without encryption, for agents of one host. `host` is the address to listen at. Port 0:
 * any free port.
 */
export function tcpNetwork({
  host = "127.0.0.1",
  port = 0,
}: {
  readonly host?: string;
  readonly port?: number;
} = {}): Network {
  return {
    async listen(accept) {
      const server = createServer((socket) => accept(socket.setNoDelay(true)));
      server.listen({ host, port, backlog: 1024 });
      await once(server, "listening");
      return { address: formatAddress(host, listeningPort(server)), close: () => void server.close() };
    },
    async connect(address) {
      const socket = connect({ ...parseAddress(address), noDelay: true });
      await once(socket, "connect");
      return socket;
    },
  };
}

/** Returns `host:port`, with brackets around an IPv6 address. */
export const formatAddress = (host: string, port: number): string =>
  host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;

/** Parses `host:port` or `[host]:port`. */
export function parseAddress(address: string): { readonly host: string; readonly port: number } {
  const colonIndex = address.lastIndexOf(":");
  return {
    host: address.slice(0, colonIndex).replace(/^\[(.*)\]$/, "$1"),
    port: Number(address.slice(colonIndex + 1)),
  };
}

/** Returns the port of a listening server. */
export function listeningPort(server: Server): number {
  const address = server.address();
  if (address === null || typeof address === "string")
    throw new Error(`listeningPort: expected a server on a TCP port, received ${address ?? "a closed server"}`);
  return address.port;
}
