import { type ConnectOptions, type Device, expectValue, OptionError, type ProcessGroup } from "@mosaic/core";
import { callNative, type OpenOptions } from "./addon.ts";
import { resolveAgentAddress } from "./agent.ts";
import { NativeGroup } from "./group.ts";
import { NativeRank } from "./rank.ts";

const DEFAULT_TIMEOUT_SECONDS = 300;

/**
 * Returns the seconds that a collective may take: the option, else MOSAIC_COLLECTIVE_TIMEOUT, else 300.
 *
 * @example
 * ```ts
 * import { resolveTimeout } from "@mosaic/runtime";
 * resolveTimeout(20); // => 20
 * ```
 * @throws OptionError unless it is a number of seconds above 0, at most 1e9.
 */
export function resolveTimeout(timeoutOption: number | undefined): number {
  const text = process.env.MOSAIC_COLLECTIVE_TIMEOUT;
  const timeout = timeoutOption ?? (text ? Number(text) : DEFAULT_TIMEOUT_SECONDS);
  // Nanoseconds must fit in 63 bits.
  if (timeout > 0 && timeout <= 1e9) return timeout;
  throw new OptionError({
    where: timeoutOption === undefined ? "environment variable MOSAIC_COLLECTIVE_TIMEOUT" : "timeout",
    expected: "seconds > 0, at most 1e9",
    received: String(timeoutOption ?? text),
  });
}

/** The control plane that connects a rank with the others: rendezvous, failures, positions and group splits. */
export type ControlPlane = Pick<OpenOptions, "world"> | Pick<OpenOptions, "agent">;

/** Options of `connectRank`. */
export interface ConnectRankOptions extends ConnectOptions {
  /**
   * Creates this rank's transport and returns the address of its `MosaicTransport` (mosaic/transport.h). The engine
   * frees it.
   */
  readonly openTransport: () => number;
  readonly control: ControlPlane;
  /** Seconds to wait for the other ranks. Default: the timeout of collectives. */
  readonly connectTimeout?: number | undefined;
  /** When closing: seconds to wait for ranks that make no progress. Default: until the timeout. */
  readonly drainSeconds?: number;
}

/**
 * Connects this rank with the others over a transport. Resolves to the group of all ranks.
 *
 * @throws OptionError for an invalid rank or size; errors of the transport; CollectiveMismatchError if the devices of
 * the ranks have different instruction sets; CollectiveTimeoutError, which names the missing ranks.
 */
export async function connectRank(options: ConnectRankOptions): Promise<ProcessGroup> {
  const { device, rank, size, openTransport, control, drainSeconds = -1 } = options;
  checkRank({ rank, size });
  const { stream } = device;
  const timeoutSeconds = resolveTimeout(options.timeout);
  const nativeRank = await NativeRank.open(device, openTransport, {
    ...control,
    ...{ rank, size, timeoutSeconds, drainSeconds },
    connectSeconds: options.connectTimeout === undefined ? timeoutSeconds : resolveTimeout(options.connectTimeout),
    stream: Number(stream.handle),
    port: Number(stream.port ?? 0n),
    instructionSet: device.instructionSet ?? "",
  });
  return NativeGroup.world(nativeRank, { rank, size });
}

/** Options of `connectProcess`. */
export interface ConnectProcessOptions extends Omit<ConnectRankOptions, "control"> {
  /** Name of the collectives. The ranks of a job join a separate world for each kind. */
  readonly kind: string;
  /** A name that is equal on all ranks of the job and unique on this host. Default: the launcher's name of the job. */
  readonly name?: string | undefined;
}

/** Connects this process with the other ranks of its job, through the agent of this host: docs/control-plane.md. */
export async function connectProcess(options: ConnectProcessOptions): Promise<ProcessGroup> {
  const { kind, name, ...connectOptions } = options;
  checkRank(connectOptions);
  if (connectOptions.size === 1) {
    return connectRank({
      ...connectOptions,
      control: createInProcessControl(1, connectOptions.connectTimeout ?? connectOptions.timeout),
    });
  }
  const timeout = resolveTimeout(connectOptions.connectTimeout ?? connectOptions.timeout);
  using address = await resolveAgentAddress(connectOptions.rank, name, timeout);
  const { path, secret, world, attempt } = address;
  return await connectRank({
    ...connectOptions,
    control: { agent: { path, secret, world: `${world}/${kind}`, attempt } },
  });
}

/**
 * Creates the control plane for ranks that are all in this process. It uses memory, not sockets. Ranks wait `timeout` s
 * for one another. `hosts` has a host number for each rank, which transports receive, and so simulates several hosts.
 *
 * @throws OptionError unless `hosts` is empty or has a host number for each rank.
 */
export function createInProcessControl(size: number, timeout?: number, hosts: readonly number[] = []): ControlPlane {
  const isHostIndex = (host: unknown): boolean =>
    Number.isInteger(host) && (host as number) >= 0 && (host as number) < size;
  const areValidHosts =
    Array.isArray(hosts) && (hosts.length === 0 || (hosts.length === size && hosts.every(isHostIndex)));
  expectValue("world: hosts", areValidHosts, `${size} host indices from 0 to ${size - 1}`, hosts);
  return { world: callNative((addon) => addon.openWorld(size, resolveTimeout(timeout), Uint32Array.from(hosts))) };
}

/** Throws an OptionError unless `rank` is an integer in [0, `size`). */
function checkRank({ rank = 0, size }: { readonly rank?: number; readonly size: number }): void {
  if (Number.isInteger(size) && size >= 1 && Number.isInteger(rank) && rank >= 0 && rank < size) return;
  throw new OptionError({
    where: "collectives",
    expected: "integers with 0 ≤ rank < world size",
    received: `rank ${rank} with world size ${size}`,
  });
}

/** Throws an OptionError unless the device is of type `type`. */
export function checkDeviceType(device: Device, type: string, where: string): void {
  if (device.type === type) return;
  throw new OptionError({
    where,
    expected: `a device of type ${type}`,
    received: device.type,
    remedy: "use collectives that support that device",
  });
}
