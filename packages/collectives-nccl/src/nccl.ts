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

/** NCCL supports at most 64 channels. */
const ctaCountRange = { min: 1, max: 64, optional: true } as const;
const timeoutSecondsRange = {
  above: 0,
  max: 1e9,
  expected: "seconds > 0, at most 1e9",
  optional: true,
} as const;

export const ncclOptions = defineOptions("nccl", {
  /** Seconds that a collective may take. Default: the option of `init`, else MOSAIC_COLLECTIVE_TIMEOUT, else 300. */
  timeout: option.number(timeoutSecondsRange),
  /** Seconds to wait for the other ranks, and again for NCCL to connect them. Default: the timeout of collectives. */
  connectTimeout: option.number(timeoutSecondsRange),
  /** A name that distinguishes worlds that form at the same time in one job. Default: the launcher's name of the job. */
  name: option.string({ optional: true }),
  /**
   * Minimum number of CTAs (thread blocks) that NCCL uses. Each occupies a multiprocessor, which attention cannot use
   * meanwhile. A ring inside a node needs few CTAs, links between nodes need more. Default: NCCL decides.
   */
  minCtas: option.integer(ctaCountRange),
  /** Maximum number of CTAs (thread blocks) that NCCL uses. Default: NCCL decides. */
  maxCtas: option.integer(ctaCountRange),
  /**
   * The network between the hosts, for the rendezvous in NCCL and for its sockets: an interface ("eth1") or a subnet
   * ("10.1.0.0/16"). Several are separated by commas. Sets NCCL_SOCKET_IFNAME, unless it is in the environment.
   * Default: NCCL decides.
   */
  network: option.string({ optional: true }),
  /** NCCL's name of the network plugin for data between hosts, such as "IB" or "Socket". Default: NCCL decides. */
  netName: option.string({ optional: true }),
  /**
   * Makes all connections of a group when it is created. If false, a group of many ranks opens faster, but the first
   * transfer between two of its ranks takes longer. Default true.
   */
  warmUp: option.boolean({ default: true }),
  /**
   * Id of this rank's host for NCCL (NCCL_HOSTID). Ranks that share a GPU need different ids. Default: the host's id.
   */
  hostId: option.string({ optional: true }),
});
/** Options of `nccl`. All have defaults. */
export type NcclOptions = OptionsOf<typeof ncclOptions>;
/** Checked options. */
type NcclSettings = ResolvedOptionsOf<typeof ncclOptions>;

/** @throws OptionError that names the first invalid option. */
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

/** Throws an OptionError unless the device is a CUDA device with a port. */
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
 * Collectives for ranks on NVIDIA GPUs, over NCCL 2.18 or newer. NCCL is loaded when the ranks connect: from
 * MOSAIC_NCCL_LIBRARY, else by its usual names, else from Python packages.
 *
 * Processes rendezvous through the agent of their host. `mosaic-run` provides it; under other launchers the first rank
 * of a host starts one. The group that `connect` resolves to has the contract of all process groups: collectives are
 * enqueued, run on a separate stream concurrently with compute, and reductions have the same bits on all ranks.
 *
 * @throws OptionError for unknown options. `connect` rejects with DeviceError, which reports what to install, if NCCL
 * is missing or too old, and with CollectiveTimeoutError, which names the missing ranks.
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

/** Returns the options to connect a rank over NCCL. Loads NCCL. */
function createRankOptions(connectOptions: ConnectOptions, options: NcclSettings): Omit<ConnectRankOptions, "control"> {
  checkDevice(connectOptions.device);
  const timeout = resolveTimeout(options.timeout ?? connectOptions.timeout);
  const { connectTimeout = timeout, minCtas = 0, maxCtas = 0, network, netName = "", warmUp } = options;
  // NCCL reads these variables once, when it is initialized. "=" selects exactly these interfaces, rather than all
  // whose names begin with them.
  if (network !== undefined) {
    process.env.NCCL_SOCKET_IFNAME ??= `=${findInterfaces(network, "nccl: network").join(",")}`;
  }
  if (options.hostId !== undefined) process.env.NCCL_HOSTID = options.hostId;
  // Also read once. Otherwise NCCL would connect the ranks again when a large operation first uses another algorithm.
  if (warmUp) process.env.NCCL_RUNTIME_CONNECT ??= "0";
  loadNccl();
  const openTransport = (): number => openNccl({ minCtas, maxCtas, netName, warmUp });
  return { ...connectOptions, timeout, connectTimeout, openTransport };
}

/** Options of a world in one process: the options of `init`, a device for each rank, and the options of `nccl`. */
export interface NcclWorldOptions extends WorldOptions {
  readonly nccl?: NcclOptions;
}

/**
 * Opens many ranks in this process, each on its own GPU, all driven by this thread. It is for tests and debuggers.
 *
 * @throws The errors of `nccl`. NCCL rejects two ranks of one process on one GPU.
 */
export async function world(size: number, worldOptions: NcclWorldOptions): Promise<readonly Context[]> {
  const isValidSize = Number.isSafeInteger(size) && size >= 1;
  expectValue("world", isValidSize, "an integer number of ranks ≥ 1", size);
  const isOptionsObject = typeof worldOptions === "object" && worldOptions !== null;
  expectValue("world", isOptionsObject, "an options object, { device }", worldOptions);
  const { nccl, ...options } = worldOptions;
  const settings = parseOptions(nccl);
  // This thread posts for all ranks in turn, so a launch of one rank in NCCL must not wait for other ranks.
  process.env.NCCL_RUNTIME_CONNECT ??= "0";
  // Otherwise NCCL would access tensors of other ranks in the same process directly. Their memory pool is accessible
  // only to their own GPU.
  process.env.NCCL_P2P_DIRECT_DISABLE ??= "1";
  // The first launch of a kernel must not wait, either. To load a kernel lazily, CUDA waits for the GPU, which may wait
  // for a rank that posts later.
  if (size > 1) process.env.CUDA_MODULE_LOADING ??= "EAGER";
  const collectives = createInProcessCollectives({
    ...{ name: "nccl", size, check: checkDevice },
    rank: (connectOptions) => createRankOptions(connectOptions, settings),
  });
  return openWorld(size, collectives, options);
}
