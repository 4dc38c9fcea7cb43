import { type Device, OptionError, defineOptions, option, type OptionsOf, type ResolvedOptionsOf } from "@mosaic/core";

/** NCCL has 64 channels at most. */
const ctas = { min: 1, max: 64, optional: true } as const;
const seconds = { above: 0, max: 1e9, expected: "seconds, more than 0 and at most 1e9", optional: true } as const;

export const ncclOptions = defineOptions("nccl", {
  /** Seconds that a collective may take. Default: what `init` was given, else MOSAIC_COLLECTIVE_TIMEOUT, else 300. */
  timeout: option.number(seconds),
  /** Seconds to wait for the other ranks, and for NCCL to connect them. Default: as long as a collective may take. */
  connectTimeout: option.number(seconds),
  /** Distinguishes worlds that form at the same time in one job. Default: "world". */
  name: option.string({ optional: true }),
  /**
   * Thread blocks that NCCL may use at least. Each takes a multiprocessor from attention while it runs; a ring inside a node
   * needs few, links between nodes more. Default: NCCL decides.
   */
  minCtas: option.integer(ctas),
  /** Thread blocks that NCCL may use at most. Default: NCCL decides. */
  maxCtas: option.integer(ctas),
  /** The network between nodes, by NCCL's name: "IB", "Socket". Default: NCCL decides. */
  network: option.string({ optional: true }),
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
export type NcclSettings = ResolvedOptionsOf<typeof ncclOptions>;

/** @throws OptionError that names the first option that will not do. */
export function parseOptions(options: NcclOptions | undefined): NcclSettings {
  const settings = ncclOptions.parse(options);
  const { minCtas, maxCtas } = settings;
  if (minCtas !== undefined && maxCtas !== undefined && minCtas > maxCtas) {
    throw new OptionError({
      where: "nccl",
      expected: "minCtas of at most maxCtas",
      received: `${minCtas} and ${maxCtas}`,
    });
  }
  return settings;
}

/** Throws unless these collectives serve the device. */
export function checkDevice(device: Device): void {
  if (device.type === "cuda" && device.stream.port !== undefined) return;
  throw new OptionError({
    where: "nccl collectives",
    expected: "a device of type cuda",
    received: device.type,
    remedy: 'connect ranks on CPUs with local() of "@mosaic/collectives-local"',
  });
}
