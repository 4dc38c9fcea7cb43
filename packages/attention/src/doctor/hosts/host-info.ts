// What a host is, as far as hosts of a job must be alike.
import { lookup } from "node:dns/promises";
import { hostname, networkInterfaces } from "node:os";
import type { System } from "../system.ts";
import type { SocketAddress } from "./sockets.ts";

/** One host of the job; in a job on one host one of its ranks. */
export interface HostInfo extends SocketAddress {
  /** "n0", the node of that rank; "rank 0" in a job on one host. */
  readonly label: string;
  readonly hostname: string;
  /** Ranks that the host has. */
  readonly ranks: number;
  readonly node: string;
  /** Versions, by package. */
  readonly packages: Readonly<Record<string, string>>;
  /** Undefined where there is none. */
  readonly ucx: string | undefined;
  readonly instructionSet: string;
  /** The interface that has the address, and its MTU; undefined where the system has no such file. */
  readonly interface: string | undefined;
  readonly mtu: number | undefined;
}

const COMPARED_PACKAGES = ["attention", "core", "runtime", "kernels-cpu", "launcher", "collectives-ucx"].map(
  (name) => `@mosaic/${name}`,
);

/** Looks at this host. */
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

/** What the name of each host resolves to here: addresses, or why there are none. */
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
