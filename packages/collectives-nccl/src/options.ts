import { checkOptionNames, type Device, OptionError } from "@mosaic/core";
import { timeoutOf } from "@mosaic/runtime";

/** How NCCL is used. All of it has defaults. */
export interface NcclOptions {
  /** Seconds that a collective may take. Default: what `init` was given, else MOSAIC_COLLECTIVE_TIMEOUT, else 300. */
  readonly timeout?: number;
  /** Seconds to wait for the other ranks, and for NCCL to connect them. Default: as long as a collective may take. */
  readonly connectTimeout?: number;
  /** Distinguishes worlds that form at the same time in one job. Default "world". */
  readonly name?: string;
  /**
   * Thread blocks that NCCL may use at least, and at most. Each takes a multiprocessor from attention while it runs; a
   * ring inside a node needs few, links between nodes more. Default: NCCL decides.
   */
  readonly minCtas?: number;
  readonly maxCtas?: number;
  /** The network between nodes, by NCCL's name: "IB", "Socket". Default: NCCL decides. */
  readonly network?: string;
  /**
   * Makes every connection at once, when ranks join a group. Without, a group of many ranks opens faster, and the first
   * transfer between two of them takes longer. Default true.
   */
  readonly warmUp?: boolean;
  /** This rank's host, as NCCL sees it (NCCL_HOSTID): ranks that share a GPU need one each. Default: the host's. */
  readonly hostId?: string;
}

const known = [
  "timeout",
  "connectTimeout",
  "name",
  "minCtas",
  "maxCtas",
  "network",
  "warmUp",
  "hostId",
] as const satisfies readonly (keyof NcclOptions)[];

/** @throws OptionError that names the first option that will not do. */
export function checkOptions(options: NcclOptions): void {
  checkOptionNames("nccl", options, known);
  const { minCtas, maxCtas, timeout, connectTimeout } = options;
  checkCtas("minCtas", minCtas);
  checkCtas("maxCtas", maxCtas);
  if (minCtas !== undefined && maxCtas !== undefined && minCtas > maxCtas) {
    throw new OptionError({
      where: "nccl",
      expected: "minCtas of at most maxCtas",
      received: `${minCtas} and ${maxCtas}`,
    });
  }
  for (const seconds of [timeout, connectTimeout]) if (seconds !== undefined) timeoutOf(seconds);
}

/** NCCL has 64 channels at most. */
function checkCtas(name: string, value: number | undefined): void {
  if (value === undefined || (Number.isInteger(value) && value >= 1 && value <= 64)) return;
  throw new OptionError({ where: `nccl: ${name}`, expected: "a whole number from 1 to 64", received: String(value) });
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
