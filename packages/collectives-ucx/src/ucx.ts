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
  /** Seconds to wait for the other ranks, and again for UCX to connect them. Default: the timeout of collectives. */
  connectTimeout: option.number({ above: 0, max: 1e9, expected: "seconds > 0, at most 1e9", optional: true }),
  /**
   * A name that distinguishes worlds that form at the same time in one job. Default: the launcher's name of the job.
   */
  name: option.string({ optional: true }),
  /**
   * The network between the hosts: an interface ("eth1"), a subnet ("10.1.0.0/16"), or a device by its name in UCX
   * ("mlx5_0:1"). Several are separated by commas. Default: UCX_NET_DEVICES, else all that UCX finds.
   */
  network: option.string({ optional: true }),
  /**
   * Range of TCP ports to listen on, such as "30000-30999". Each rank needs one port per network. Default:
   * UCX_TCP_PORT_RANGE, else any.
   */
  ports: option.string({ optional: true }),
});
/** Options of `ucx`. */
export type UcxOptions = OptionsOf<typeof ucxOptions>;

/** Maximum number of ranks in one process, which may all share memory. */
const MAX_RANKS = 1024;

/** Settings to connect a rank. */
interface UcxSettings {
  readonly connectTimeout: number | undefined;
  /** In the format of UCX. "" leaves the choice to UCX. */
  readonly devices: string;
  readonly ports: string;
}

/**
 * Collectives for ranks on CPUs of several hosts. Ranks of one host communicate over shared memory, ranks of different
 * hosts over UCX. UCX 1.13 or newer is loaded when the ranks connect: from MOSAIC_UCX_LIBRARY, else by its usual name,
 * else from Python packages.
 *
 * Processes rendezvous through the agent of their host, which `mosaic-run` provides, and exchange the addresses of UCX
 * there. The group that `connect` resolves to has the contract of all process groups. Reductions have the same bits as
 * over shared memory.
 *
 * @throws OptionError for unknown options. `connect` rejects with AddonLoadError, which reports what to install, if UCX
 * is missing or too old; with DeviceError if UCX finds no network to another host; and with CollectiveTimeoutError,
 * which names the missing ranks.
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

/** Options of a world in one process: the options of `init`, a device for each rank, and the options of `ucx`. */
export interface UcxWorldOptions extends WorldOptions {
  readonly ucx?: UcxOptions;
  /**
   * Host number of each rank, from 0 to size - 1. As on real hosts, ranks with the same number communicate over shared
   * memory, and others over UCX. Default: each rank is on its own host.
   */
  readonly hosts?: readonly number[];
}

/**
 * Opens many ranks in this process, all driven by this thread, as if they were on several hosts. It is for tests and
 * debuggers.
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

/** Checks the arguments of `world` before a list of hosts is made of the size. */
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

/**
 * Returns the options to connect a rank over UCX. Loads UCX first, so that it fails before an agent is started
 * needlessly.
 */
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

/**
 * Returns the UCX devices of one item of `network`: the interfaces with an address in a subnet, else the item itself.
 */
function parseNetwork(interfaceText: string): readonly string[] {
  return interfaceText.includes("/") ? findInterfaces(interfaceText, "ucx: network") : [interfaceText.trim()];
}
