import type { Collectives, ConnectOptions, ProcessGroup } from "@mosaic/core";
import { connectRank, type ControlPlane, inProcessControl, timeoutOf } from "@mosaic/runtime";
import { loadNccl, openTransport } from "./addon.ts";
import { checkDevice, checkOptions, type NcclOptions } from "./options.ts";

/**
 * Collectives for ranks on NVIDIA GPUs, over NCCL 2.18 or newer, which is loaded when the ranks connect: from
 * MOSAIC_NCCL_LIBRARY, else by its usual names, else from Python's packages.
 *
 * The group that `connect` resolves to has the contract of all process groups: what a collective does is enqueued, runs on a
 * stream of its own beside compute, and reductions give all ranks the same bits.
 *
 * @throws OptionError for options that do not exist; `connect` rejects with DeviceError, which says what to install,
 * where there is no NCCL, or too old a one, and with CollectiveTimeoutError, which names the ranks that are missing.
 * @example
 * ```ts
 * import { nccl } from "@mosaic/collectives-nccl";
 * nccl({ maxCtas: 8 }).name; // => "nccl"
 * ```
 */
export function nccl(options: NcclOptions = {}): Collectives {
  checkOptions(options);
  return {
    name: "nccl",
    async connect(connecting) {
      if (connecting.size > 1) throw new Error("the control plane between processes is not there yet");
      return connectNccl(connecting, options, { control: inProcessControl(1) });
    },
  };
}

/** What differs between ranks of one process and of many. */
export interface Peers {
  readonly control: ControlPlane;
  /** When closing: seconds to wait for ranks that do not move. Default: as long as the timeout allows. */
  readonly drainSeconds?: number;
}

/** Connects a rank with the others over NCCL; resolves to the group of all ranks. */
export async function connectNccl(
  connecting: ConnectOptions,
  options: NcclOptions,
  peers: Peers,
): Promise<ProcessGroup> {
  checkDevice(connecting.device);
  const timeout = timeoutOf(options.timeout ?? connecting.timeout);
  const { connectTimeout = timeout, minCtas = 0, maxCtas = 0, network = "", warmUp = true } = options;
  // NCCL reads it once, when it starts.
  if (options.hostId !== undefined) process.env.NCCL_HOSTID = options.hostId;
  // Likewise; else it would connect the ranks once more when a large operation first takes another of its algorithms.
  if (warmUp) process.env.NCCL_RUNTIME_CONNECT ??= "0";
  loadNccl();
  return connectRank({
    ...connecting,
    ...peers,
    timeout,
    connectTimeout,
    openTransport: () => openTransport({ minCtas, maxCtas, network, warmUp }),
  });
}
