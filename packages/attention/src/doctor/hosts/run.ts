// mosaic-doctor --hosts: one process on each host of a job measures the links to all other hosts. Rank 0 prints the
// results.
import { randomBytes } from "node:crypto";
import type { AddressInfo, Server } from "node:net";
import type { Store } from "@mosaic/launcher";
import { formatFailure, type ProbeResult, runProbeProcess, type System } from "../system.ts";
import { collectHostInfo, type HostInfo, resolveNames } from "./host-info.ts";
import { listRoundRobinPairs } from "./round-robin.ts";
import { startServer, measureSocket, type SocketFailure, type SocketLink } from "./sockets.ts";

/** One-way latency in seconds, and bandwidth in bytes per second. */
export interface MeasuredLink {
  readonly latency: number;
  readonly bandwidth: number;
}

/**
 * The measurements of one host, indexed by the other host. In `sockets` and `ucx`, the entry of the host itself is
 * null.
 */
export interface HostMeasurement {
  readonly names: readonly (readonly string[] | string)[];
  readonly sockets: readonly (SocketLink | SocketFailure | null)[];
  /** The UCX links, or the reason why they were not measured. */
  readonly ucx: readonly (MeasuredLink | null)[] | string;
}

/** All hosts and their measurements. */
export interface HostsResult {
  readonly hosts: readonly HostInfo[];
  readonly measurements: readonly HostMeasurement[];
}

/** Options of `measureHosts`. */
export interface HostsOptions {
  /** Range of TCP ports on which the job may listen; any port if absent. */
  readonly ports?: readonly [first: number, last: number] | undefined;
}

/** Time that a host waits for another one, which may be loading or waiting for its own timeouts. */
const EXCHANGE_TIMEOUT_MS = 180_000;

/**
 * Returns the index of this process among those that measure, and their number; undefined if another rank of its host
 * measures.
 */
function getHostPosition({ env }: System): { readonly index: number; readonly count: number } | undefined {
  const nodes = Number(env["GROUP_WORLD_SIZE"] ?? 1);
  if (nodes === 1) return { index: Number(env["RANK"]), count: Number(env["WORLD_SIZE"]) };
  return Number(env["LOCAL_RANK"]) === 0 ? { index: Number(env["GROUP_RANK"]), count: nodes } : undefined;
}

/**
 * Measures the links between the hosts of a job. All ranks of the job must call it. Resolves on rank 0 to the results
 * of all hosts, and on other ranks to undefined.
 *
 * @throws StoreError if the store of the job cannot be reached, or if a host does not participate in time.
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

/** Exchanges values among all hosts through the store of the job. */
class StoreExchange {
  readonly index: number;
  readonly count: number;
  readonly #store: Store;

  constructor(store: Store, { index, count }: { readonly index: number; readonly count: number }) {
    this.#store = store;
    this.index = index;
    this.count = count;
  }

  /** Returns the values of all hosts, by host. Each name may be used only once. */
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

/**
 * Measures the socket links. In each pair, the host with the lower index measures first, so that directions do not
 * overlap.
 */
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

/**
 * Measures the UCX links in a separate process, because native code may crash or hang. Not measured if any port is
 * blocked, because UCX would only time out.
 */
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
