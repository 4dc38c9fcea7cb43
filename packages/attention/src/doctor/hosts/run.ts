// mosaic-doctor --hosts: one process on each host of a job measures towards all others; rank 0 prints what they found.
import { randomBytes } from "node:crypto";
import type { AddressInfo, Server } from "node:net";
import type { Store } from "@mosaic/launcher";
import { formatFailure, type ProbeResult, runProbeProcess, type System } from "../system.ts";
import { collectHostInfo, type HostInfo, resolveNames } from "./host-info.ts";
import { listRoundRobinPairs } from "./round-robin.ts";
import { startServer, measureSocket, type SocketFailure, type SocketLink } from "./sockets.ts";

/** Latency in seconds and bandwidth in bytes per second, one way. */
export interface MeasuredLink {
  readonly latency: number;
  readonly bandwidth: number;
}

/** What one host found, by host: nothing about itself. */
export interface HostMeasurement {
  readonly names: readonly (readonly string[] | string)[];
  readonly sockets: readonly (SocketLink | SocketFailure | null)[];
  /** What UCX reaches, or why it was not measured. */
  readonly ucx: readonly (MeasuredLink | null)[] | string;
}

/** What all hosts found. */
export interface HostsResult {
  readonly hosts: readonly HostInfo[];
  readonly measurements: readonly HostMeasurement[];
}

/** How hosts are measured. */
export interface HostsOptions {
  /** TCP ports on which the job is allowed to listen; any if absent. */
  readonly ports?: readonly [first: number, last: number] | undefined;
}

/** How long a host waits for another one, which may be loading, or waiting for timeouts of its own. */
const EXCHANGE_TIMEOUT_MS = 180_000;

/** The host's place among those that measure, and their number; undefined for ranks that leave it to the first rank of their host. */
function getHostPosition({ env }: System): { readonly index: number; readonly count: number } | undefined {
  const nodes = Number(env["GROUP_WORLD_SIZE"] ?? 1);
  if (nodes === 1) return { index: Number(env["RANK"]), count: Number(env["WORLD_SIZE"]) };
  return Number(env["LOCAL_RANK"]) === 0 ? { index: Number(env["GROUP_RANK"]), count: nodes } : undefined;
}

/**
 * Collective over the ranks of a job. Resolves on rank 0 to what all hosts found, on the others to undefined.
 *
 * @throws StoreError where the store of the job cannot be reached, or a host does not come.
 */
export async function measureHosts(system: System, options: HostsOptions = {}): Promise<HostsResult | undefined> {
  const position = getHostPosition(system);
  if (position === undefined) return undefined;
  const { connectStore } = await import("@mosaic/launcher");
  await using store = await connectStore();
  const exchange = new StoreExchange(store, position);
  const nonce = randomBytes(32).toString("hex");
  const address = system.env["MOSAIC_NODE_ADDR"] || "127.0.0.1";
  const server = await startServer(address, nonce, options.ports);
  try {
    const { port } = server.address() as AddressInfo;
    const hosts = await exchange.allGather("facts", await collectHostInfo(system, { address, port, nonce }));
    const names = await resolveNames(hosts);
    const sockets = await measureSockets(exchange, hosts);
    const ucx = await measureUcx(exchange, { hosts, sockets, ...options });
    const measurements = await exchange.allGather<HostMeasurement>("measured", { names, sockets, ucx });
    return position.index === 0 ? { hosts, measurements } : undefined;
  } finally {
    closeServer(server);
  }
}

function closeServer(server: Server): void {
  server.close();
  server.unref();
}

/** Values of all hosts, through the store of the job. */
class StoreExchange {
  readonly index: number;
  readonly count: number;
  readonly #store: Store;

  constructor(store: Store, { index, count }: { readonly index: number; readonly count: number }) {
    this.#store = store;
    this.index = index;
    this.count = count;
  }

  /** Every host's value, by host. Once for each name. */
  async allGather<T>(name: string, value: T): Promise<readonly T[]> {
    await this.#store.set(`doctor/${name}/${this.index}`, JSON.stringify(value));
    const values: T[] = [];
    for (let host = 0; host < this.count; host++) {
      const text = await this.#store.waitFor(`doctor/${name}/${host}`, { timeoutMs: EXCHANGE_TIMEOUT_MS });
      values.push(JSON.parse(text.toString()) as T);
    }
    return values;
  }
}

/** Of each pair first the lower host measures, then the other: links are timed one way at a time. */
async function measureSockets(
  exchange: StoreExchange,
  hosts: readonly HostInfo[],
): Promise<(SocketLink | SocketFailure | null)[]> {
  const links: (SocketLink | SocketFailure | null)[] = hosts.map(() => null);
  for (const [round, peers] of listRoundRobinPairs(hosts.length).entries()) {
    const peer = peers[exchange.index]!;
    for (const direction of [0, 1]) {
      const isClient = peer >= 0 && exchange.index < peer === (direction === 0);
      if (isClient) links[peer] = await measureSocket(hosts[peer]!);
      await exchange.allGather(`round/${round}/${direction}`, true);
    }
  }
  return links;
}

/** In a process of its own, for native code may crash or hang; not where some port is blocked, where UCX would only time out. */
async function measureUcx(
  exchange: StoreExchange,
  { hosts, sockets, ports }: HostsOptions & Pick<HostsResult, "hosts"> & Pick<HostMeasurement, "sockets">,
): Promise<HostMeasurement["ucx"]> {
  const socketResults = await exchange.allGather("sockets", sockets);
  const hostsWithoutUcx = hosts.filter(({ ucx }) => ucx === undefined).map(({ label }) => label);
  if (hostsWithoutUcx.length > 0) return `not installed on ${hostsWithoutUcx.join(", ")}`;
  const socketLinks = socketResults.flat().filter((link) => link !== null);
  if (socketLinks.some((link) => !("bandwidth" in link)))
    return "not measured because some hosts cannot reach each other";
  if (hosts.length < 2) return "not measured on one rank";
  const minBandwidth = Math.min(...socketLinks.map((link) => (link as SocketLink).bandwidth));
  const args = [exchange.index, hosts.length, Math.round(minBandwidth), ports?.join("-") ?? ""].map(String);
  const probeResult: ProbeResult<readonly (MeasuredLink | null)[]> = await runProbeProcess(["ucxLinks", ...args]);
  return "value" in probeResult ? probeResult.value : formatFailure(probeResult.error).filter(Boolean).join("; ");
}
