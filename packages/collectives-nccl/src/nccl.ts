import type { Collectives, ConnectOptions } from "@mosaic/core";
import { connectProcess, type ConnectRankOptions, timeoutOf } from "@mosaic/runtime";
import { loadNccl, openTransport as openNccl } from "./addon.ts";
import { checkDevice, type NcclOptions, type NcclSettings, parseOptions } from "./options.ts";

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
    async connect(connecting) {
      return connectProcess({ ...rankOptions(connecting, settings), kind: "nccl", name: settings.name });
    },
  };
}

/** How a rank is connected over NCCL, which is loaded here. */
export function rankOptions(connecting: ConnectOptions, options: NcclSettings): Omit<ConnectRankOptions, "control"> {
  checkDevice(connecting.device);
  const timeout = timeoutOf(options.timeout ?? connecting.timeout);
  const { connectTimeout = timeout, minCtas = 0, maxCtas = 0, network = "", warmUp } = options;
  // NCCL reads it once, when it starts.
  if (options.hostId !== undefined) process.env.NCCL_HOSTID = options.hostId;
  // Likewise; else it would connect the ranks once more when a large operation first takes another of its algorithms.
  if (warmUp) process.env.NCCL_RUNTIME_CONNECT ??= "0";
  loadNccl();
  const openTransport = (): number => openNccl({ minCtas, maxCtas, network, warmUp });
  return { ...connecting, timeout, connectTimeout, openTransport };
}
