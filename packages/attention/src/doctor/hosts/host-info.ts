// Properties of a host that are compared among the hosts of a job.
import { lookup } from "node:dns/promises";
import { hostname, networkInterfaces } from "node:os";
import type { System } from "../system.ts";
import type { SocketAddress } from "./sockets.ts";

/** One host of the job. In a job on a single host, each rank counts as a host. */
export interface HostInfo extends SocketAddress {
  /** The node rank, such as "n0"; in a job on a single host, the rank, such as "rank 0". */
  readonly label: string;
  readonly hostname: string;
  /** Number of ranks on the host. */
  readonly ranks: number;
  readonly node: string;
  /** Versions by package name. */
  readonly packages: Readonly<Record<string, string>>;
  /** UCX version; undefined if UCX is not available. */
  readonly ucx: string | undefined;
  readonly instructionSet: string;
  /** The network interface of the address, and its MTU; undefined if they cannot be determined. */
  readonly interface: string | undefined;
  readonly mtu: number | undefined;
}

const COMPARED_PACKAGES = ["attention", "core", "runtime", "kernels-cpu", "launcher", "collectives-ucx"].map(
  (name) => `@mosaic/${name}`,
);

/** Collects the properties of this host. */
export async function collectHostInfo(system: System, socketAddress: SocketAddress): Promise<HostInfo> {
  const { env, node, version, readFile } = system;
  const [cpu, ucx] = await Promise.all([system.runProbe("cpu"), system.runProbe("ucx")]);
  const versions = COMPARED_PACKAGES.map((name) => [name, version(name)] as const).filter(([, each]) => each);
  const device = findInterface(socketAddress.address);
  const mtu = Number(device && readFile(`/sys/class/net/${device}/mtu`));
  return {
    ...socketAddress,
    label: Number(env["GROUP_WORLD_SIZE"] ?? 1) > 1 ? `n${env["GROUP_RANK"]}` : `rank ${env["RANK"]}`,
    hostname: hostname(),
    ranks: Number(env["LOCAL_WORLD_SIZE"] ?? 1),
    node: node.version,
    packages: Object.fromEntries(versions) as Record<string, string>,
    ucx: "value" in ucx ? ucx.value.version : undefined,
    instructionSet: "value" in cpu ? cpu.value.isa : `unknown (${cpu.error.message})`,
    interface: device,
    mtu: mtu > 0 ? mtu : undefined,
  };
}

function findInterface(address: string): string | undefined {
  const interfaces = Object.entries(networkInterfaces());
  return interfaces.find(([, infos = []]) => infos.some((info) => info.address === address))?.[0];
}

/** Resolves the hostname of each host on this host. Returns its addresses, or the error code or message. */
export async function resolveNames(hosts: readonly HostInfo[]): Promise<readonly (readonly string[] | string)[]> {
  return await Promise.all(
    hosts.map(async (host) => {
      try {
        return (await lookup(host.hostname, { all: true })).map(({ address }) => address);
      } catch (error) {
        return (error as NodeJS.ErrnoException).code ?? (error as Error).message;
      }
    }),
  );
}
