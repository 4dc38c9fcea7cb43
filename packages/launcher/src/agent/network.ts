import { once } from "node:events";
import { connect, createServer, type Server } from "node:net";
import type { Duplex } from "node:stream";

/** How agents reach one another. Anything that gives streams of bytes will do: TLS replaces TCP here. */
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

/** TCP without encryption, for agents of one host. `host` is the address to listen at; port 0 takes any free one. */
export function tcp({
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
      return { address: `${host}:${listeningPort(server)}`, close: () => void server.close() };
    },
    async connect(address) {
      const colon = address.lastIndexOf(":");
      const socket = connect({ host: address.slice(0, colon), port: Number(address.slice(colon + 1)), noDelay: true });
      await once(socket, "connect");
      return socket;
    },
  };
}

function listeningPort(server: Server): number {
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("the agent is closed");
  return address.port;
}
