import {
  type Collectives,
  type ConnectOptions,
  type Context,
  defineOptions,
  expectValue,
  option,
  OptionError,
  type OptionsOf,
} from "@mosaic/core";
import {
  checkDeviceType,
  connectProcess,
  type ConnectRankOptions,
  createInProcessCollectives,
  findInterfaces,
  openWorld,
  type WorldOptions,
} from "@mosaic/runtime";
import { loadUcx, openTransport } from "./addon.ts";

export const ucxOptions = defineOptions("ucx", {
  /** Seconds to wait for the other ranks, and again for UCX to connect them. Default: as long as a collective may take. */
  connectTimeout: option.number({ above: 0, max: 1e9, expected: "seconds > 0, at most 1e9", optional: true }),
  /** Distinguishes worlds that form at the same time in one job. Default: the job, as the launcher names it. */
  name: option.string({ optional: true }),
  /**
   * The network between the hosts: an interface, "eth1"; a subnet, "10.1.0.0/16"; or devices by UCX's names, "mlx5_0:1".
   * Several are separated by commas. Default: what UCX_NET_DEVICES names, else all that UCX finds.
   */
  network: option.string({ optional: true }),
  /** TCP ports to listen on, one for each network and rank: "30000-30999". Default: what UCX_TCP_PORT_RANGE names, else any. */
  ports: option.string({ optional: true }),
});
/** What `ucx` takes. */
export type UcxOptions = OptionsOf<typeof ucxOptions>;

/** Ranks of one process, each with shared memory to all others of its host. */
const MAX_RANKS = 1024;

/** What a rank is connected with. */
interface UcxSettings {
  readonly connectTimeout: number | undefined;
  /** As UCX takes them; "": its own choice. */
  readonly devices: string;
  readonly ports: string;
}

/**
 * Collectives for ranks on CPUs of several hosts: over shared memory between ranks of one host, over UCX between hosts. UCX 1.13
 * or newer is loaded when the ranks connect: from MOSAIC_UCX_LIBRARY, else by its usual name, else from Python's packages.
 *
 * Processes rendezvous through the agent of their host, which `mosaic-run` provides, and exchange UCX's addresses there.
 * The group that `connect` resolves to has the contract of all process groups; reductions have the same bits as over shared memory.
 *
 * @throws OptionError for options that do not exist; `connect` rejects with AddonLoadError, which reports what to install,
 * where there is no UCX, or too old a one, with DeviceError where UCX finds no network to another host, and with
 * CollectiveTimeoutError, which names the ranks that are missing.
 * @example
 * ```ts
 * import { ucx } from "@mosaic/collectives-ucx";
 * ucx({ ports: "30000-30999" }).name; // => "ucx"
 * ```
 */
export function ucx(options?: UcxOptions): Collectives {
  const { name, ...parsedOptions } = ucxOptions.parse(options);
  const settings = resolveOptions(parsedOptions);
  return {
    name: "ucx",
    async connect(connectOptions) {
      return connectProcess({ ...rankOptions(connectOptions, settings), kind: "ucx", name });
    },
  };
}

/** What a world of one process takes: `init`'s options, a device for each rank, and UCX's. */
export interface UcxWorldOptions extends WorldOptions {
  readonly ucx?: UcxOptions;
  /**
   * By rank: the number of its host, from 0 to size - 1. Ranks of one host communicate over shared memory, others over UCX, as
   * they do where there are as many hosts. Default: each rank has a host of its own.
   */
  readonly hosts?: readonly number[];
}

/**
 * Many ranks in this process, all driven by this thread, as if they were on several hosts: for tests and debuggers.
 *
 * @throws as `ucx` does.
 */
export async function world(size: number, worldOptions: UcxWorldOptions): Promise<readonly Context[]> {
  checkWorld(size, worldOptions);
  const { ucx: transportOptions, hosts, ...options } = worldOptions;
  const settings = resolveOptions(ucxOptions.parse(transportOptions));
  const collectives = createInProcessCollectives({
    ...{ name: "ucx", size, hosts: hosts ?? Array.from({ length: size }, (_, rank) => rank) },
    check: (device) => checkDeviceType(device, "cpu", "ucx collectives"),
    rank: (connectOptions) => rankOptions(connectOptions, settings),
  });
  return openWorld(size, collectives, options);
}

/** Before a list of hosts is made of the size. */
function checkWorld(size: number, options: UcxWorldOptions): void {
  expectValue("ucx: world", Number.isInteger(size) && size > 0 && size <= MAX_RANKS, `1 to ${MAX_RANKS} ranks`, size);
  expectValue("ucx: world", typeof options === "object" && options !== null, "an options object", options);
}

function resolveOptions({ connectTimeout, network, ports = "" }: Omit<UcxOptions, "name">): UcxSettings {
  if (ports !== "" && !isPortRange(ports)) {
    throw new OptionError({
      where: "ucx: ports",
      expected: 'a port range from 1 to 65535, such as "30000-30999"',
      received: JSON.stringify(ports),
    });
  }
  const devices = network === undefined ? "" : network.split(",").flatMap(parseNetwork).join(",");
  return { connectTimeout, devices, ports };
}

/** How a rank is connected over UCX, which is loaded here: before an agent is started for nothing. */
function rankOptions(connectOptions: ConnectOptions, settings: UcxSettings): Omit<ConnectRankOptions, "control"> {
  checkDeviceType(connectOptions.device, "cpu", "ucx collectives");
  loadUcx();
  const { connectTimeout, devices, ports } = settings;
  return { ...connectOptions, connectTimeout, openTransport: () => openTransport(devices, ports) };
}

function isPortRange(portRange: string): boolean {
  const [firstPort = 0, lastPort = 0] = (/^(\d{1,5})-(\d{1,5})$/.exec(portRange)?.slice(1) ?? []).map(Number);
  return firstPort >= 1 && firstPort <= lastPort && lastPort <= 65_535;
}

/** The devices, by UCX's names, that a part of `network` names: interfaces with an address in a subnet, else itself. */
function parseNetwork(interfaceText: string): readonly string[] {
  return interfaceText.includes("/") ? findInterfaces(interfaceText, "ucx: network") : [interfaceText.trim()];
}
