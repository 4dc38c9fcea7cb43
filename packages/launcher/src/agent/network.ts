import { once } from "node:events";
import { connect, createServer, type Server } from "node:net";
import type { Duplex } from "node:stream";

/** How agents reach one another. Anything that gives streams of bytes will do: `tcpNetwork` on one host, `tlsNetwork` between hosts. */
export interface Network {
  /** Accepts connections of other agents; resolves to the address that they connect to. */
  listen(accept: (stream: Duplex) => void): Promise<Listener>;
  /** Connects to an address. Rejects when it cannot. */
  connect(address: string): Promise<Duplex>;
}

export interface Listener {
  readonly address: string;
  close(): void;
}

/** Why a handshake failed: the shared secrets do not match, or is no peer of this protocol at all. */
export class HandshakeError extends Error {
  override readonly name: string = "HandshakeError";
  readonly reason: "secret" | "peer";
  constructor(reason: "secret" | "peer", message: string) {
    super(message);
    this.reason = reason;
  }
}

/** TCP without encryption, for agents of one host. `host` is the address to listen at; port 0 takes any free one. */
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

/** `host:port`, with brackets around an address of IPv6. */
export const formatAddress = (host: string, port: number): string =>
  host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;

/** The parts of `host:port` or `[host]:port`. */
export function parseAddress(address: string): { readonly host: string; readonly port: number } {
  const colonIndex = address.lastIndexOf(":");
  return {
    host: address.slice(0, colonIndex).replace(/^\[(.*)\]$/, "$1"),
    port: Number(address.slice(colonIndex + 1)),
  };
}

/** The port of a server that listens. */
export function listeningPort(server: Server): number {
  const address = server.address();
  if (address === null || typeof address === "string")
    throw new Error(`listeningPort: expected a server on a TCP port, received ${address ?? "a closed server"}`);
  return address.port;
}
