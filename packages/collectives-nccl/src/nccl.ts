import {
  type Collectives,
  type ConnectOptions,
  type Context,
  defineOptions,
  type Device,
  expectValue,
  option,
  OptionError,
  type OptionsOf,
  type ResolvedOptionsOf,
} from "@mosaic/core";
import {
  connectProcess,
  type ConnectRankOptions,
  createInProcessCollectives,
  findInterfaces,
  openWorld,
  resolveTimeout,
  type WorldOptions,
} from "@mosaic/runtime";
import { loadNccl, openTransport as openNccl } from "./addon.ts";

/** NCCL has 64 channels at most. */
const ctaCountRange = { min: 1, max: 64, optional: true } as const;
const timeoutSecondsRange = {
  above: 0,
  max: 1e9,
  expected: "seconds > 0, at most 1e9",
  optional: true,
} as const;

export const ncclOptions = defineOptions("nccl", {
  /** Seconds that a collective may take. Default: what `init` was given, else MOSAIC_COLLECTIVE_TIMEOUT, else 300. */
  timeout: option.number(timeoutSecondsRange),
  /** Seconds to wait for the other ranks, and for NCCL to connect them. Default: as long as a collective may take. */
  connectTimeout: option.number(timeoutSecondsRange),
  /** Distinguishes worlds that form at the same time in one job. Default: "world". */
  name: option.string({ optional: true }),
  /**
   * Thread blocks that NCCL may use at least. Each takes a multiprocessor from attention while it runs; a ring inside a node
   * needs few, links between nodes more. Default: NCCL decides.
   */
  minCtas: option.integer(ctaCountRange),
  /** Thread blocks that NCCL may use at most. Default: NCCL decides. */
  maxCtas: option.integer(ctaCountRange),
  /**
   * The network between the hosts, over which ranks rendezvous in NCCL, and which its sockets use: an interface, "eth1", or a subnet,
   * "10.1.0.0/16"; several are separated by commas. Becomes NCCL_SOCKET_IFNAME, unless the environment has that. Default: NCCL decides.
   */
  network: option.string({ optional: true }),
  /** What moves data between hosts, by NCCL's name: "IB", "Socket". Default: NCCL decides. */
  netName: option.string({ optional: true }),
  /**
   * Makes every connection at once, when ranks join a group. Without, a group of many ranks opens faster, and the first
   * transfer between two of them takes longer. Default true.
   */
  warmUp: option.boolean({ default: true }),
  /** This rank's host, as NCCL sees it (NCCL_HOSTID): ranks that share a GPU need one each. Default: the host's. */
  hostId: option.string({ optional: true }),
});
/** How NCCL is used. All of it has defaults. */
export type NcclOptions = OptionsOf<typeof ncclOptions>;
/** The same, checked. */
type NcclSettings = ResolvedOptionsOf<typeof ncclOptions>;

/** @throws OptionError that names the first option that will not do. */
function parseOptions(options: NcclOptions | undefined): NcclSettings {
  const settings = ncclOptions.parse(options);
  const { minCtas, maxCtas } = settings;
  if (minCtas !== undefined && maxCtas !== undefined && minCtas > maxCtas) {
    throw new OptionError({
      where: "nccl",
      expected: "minCtas ≤ maxCtas",
      received: `${minCtas} and ${maxCtas}`,
    });
  }
  return settings;
}

/** Throws unless these collectives serve the device. */
function checkDevice(device: Device): void {
  if (device.type === "cuda" && device.stream.port !== undefined) return;
  throw new OptionError({
    where: "nccl collectives",
    expected: "a device of type cuda",
    received: device.type,
    remedy: 'use local() from "@mosaic/collectives-local" for ranks on CPUs',
  });
}

/**
 * Collectives for ranks on NVIDIA GPUs, over NCCL 2.18 or newer, which is loaded when the ranks connect: from
 * MOSAIC_NCCL_LIBRARY, else by its usual names, else from Python's packages.
 *
 * Processes rendezvous through the agent of their host, which `mosaic-run` provides; where something else started them, the
 * first rank of a host starts one. The group that `connect` resolves to has the contract of all process groups: what a collective does is enqueued, runs on a
 * stream of its own beside compute, and reductions give all ranks the same bits.
 *
 * @throws OptionError for options that do not exist; `connect` rejects with DeviceError, which reports what to install,
 * where there is no NCCL, or too old a one, and with CollectiveTimeoutError, which names the ranks that are missing.
 * @example
 * ```ts
 * import { nccl } from "@mosaic/collectives-nccl";
 * nccl({ maxCtas: 8 }).name; // => "nccl"
 * ```
 */
export function nccl(options?: NcclOptions): Collectives {
  const settings = parseOptions(options);
  return {
    name: "nccl",
    async connect(connectOptions) {
      return connectProcess({ ...createRankOptions(connectOptions, settings), kind: "nccl", name: settings.name });
    },
  };
}

/** How a rank is connected over NCCL, which is loaded here. */
function createRankOptions(connectOptions: ConnectOptions, options: NcclSettings): Omit<ConnectRankOptions, "control"> {
  checkDevice(connectOptions.device);
  const timeout = resolveTimeout(options.timeout ?? connectOptions.timeout);
  const { connectTimeout = timeout, minCtas = 0, maxCtas = 0, network, netName = "", warmUp } = options;
  // NCCL reads these once, when it starts. "=": these interfaces, and none whose name begins alike.
  if (network !== undefined) {
    process.env.NCCL_SOCKET_IFNAME ??= `=${findInterfaces(network, "nccl: network").join(",")}`;
  }
  if (options.hostId !== undefined) process.env.NCCL_HOSTID = options.hostId;
  // Likewise; else it would connect the ranks once more when a large operation first takes another of its algorithms.
  if (warmUp) process.env.NCCL_RUNTIME_CONNECT ??= "0";
  loadNccl();
  const openTransport = (): number => openNccl({ minCtas, maxCtas, netName, warmUp });
  return { ...connectOptions, timeout, connectTimeout, openTransport };
}

/** What a world of one process takes: `init`'s options, a device for each rank, and NCCL's. */
export interface NcclWorldOptions extends WorldOptions {
  readonly nccl?: NcclOptions;
}

/**
 * Many ranks in this process, each on a GPU of its own, all driven by this thread: for tests and debuggers.
 *
 * @throws as `nccl` does; NCCL refuses two ranks of one process on one GPU.
 */
export async function world(size: number, worldOptions: NcclWorldOptions): Promise<readonly Context[]> {
  const isValidSize = Number.isSafeInteger(size) && size >= 1;
  expectValue("world", isValidSize, "an integer number of ranks ≥ 1", size);
  const isOptionsObject = typeof worldOptions === "object" && worldOptions !== null;
  expectValue("world", isOptionsObject, "an options object, { device }", worldOptions);
  const { nccl, ...options } = worldOptions;
  const settings = parseOptions(nccl);
  // This thread posts for all ranks in turn: NCCL must not make one wait for another when it launches.
  process.env.NCCL_RUNTIME_CONNECT ??= "0";
  // Of the same process, NCCL would look into tensors, which lie in a pool that only their own GPU reaches.
  process.env.NCCL_P2P_DIRECT_DISABLE ??= "1";
  // Nor may a kernel's first start: to load it then, CUDA waits for the GPU, which may wait for a rank that comes later.
  if (size > 1) process.env.CUDA_MODULE_LOADING ??= "EAGER";
  const collectives = createInProcessCollectives({
    ...{ name: "nccl", size, check: checkDevice },
    rank: (connectOptions) => createRankOptions(connectOptions, settings),
  });
  return openWorld(size, collectives, options);
}
