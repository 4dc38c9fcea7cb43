import { type ConnectOptions, type Device, expectValue, OptionError, type ProcessGroup } from "@mosaic/core";
import { callNative, type OpenOptions } from "./addon.ts";
import { resolveAgentAddress } from "./agent.ts";
import { NativeGroup } from "./group.ts";
import { NativeRank } from "./rank.ts";

const DEFAULT_TIMEOUT_SECONDS = 300;

/** Seconds that a collective may take: the option, else MOSAIC_COLLECTIVE_TIMEOUT, else 300. */
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

/** What connects a rank with the others beside the transport: rendezvous, failures, positions, group splits. */
export type ControlPlane = Pick<OpenOptions, "world"> | Pick<OpenOptions, "agent">;

/** How a rank is connected. */
export interface ConnectRankOptions extends ConnectOptions {
  /** Makes the transport of this rank: the address of a `MosaicTransport` (mosaic/transport.h), which the engine frees. */
  readonly openTransport: () => number;
  readonly control: ControlPlane;
  /** Seconds to wait for the other ranks. Default: as long as a collective may take. */
  readonly connectTimeout?: number | undefined;
  /** When closing: seconds to wait for ranks that do not move. Default: as long as the timeout allows. */
  readonly drainSeconds?: number;
}

/**
 * Connects this rank with the others over a transport; resolves to the group of all ranks.
 *
 * @throws OptionError for a rank or size that cannot be; what the transport reports; CollectiveMismatchError where devices of
 * ranks have different instruction sets; CollectiveTimeoutError that names the ranks that are missing.
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

/** How a rank that is a process of its own is connected. */
export interface ConnectProcessOptions extends Omit<ConnectRankOptions, "control"> {
  /** The collectives' name: the ranks of a job join a world for each. */
  readonly kind: string;
  /** The same on all ranks, and on no others of this host. Default: the job, as the launcher names it. */
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
 * The control plane of ranks that are all in this process: memory, no socket. They wait `timeout` s for one another. `hosts`, by
 * rank, simulates several hosts: transports receive these numbers.
 *
 * @throws OptionError unless `hosts` has the number of a host for each rank.
 */
export function createInProcessControl(size: number, timeout?: number, hosts: readonly number[] = []): ControlPlane {
  const isHostIndex = (host: unknown): boolean =>
    Number.isInteger(host) && (host as number) >= 0 && (host as number) < size;
  const areValidHosts =
    Array.isArray(hosts) && (hosts.length === 0 || (hosts.length === size && hosts.every(isHostIndex)));
  expectValue("world: hosts", areValidHosts, `${size} host indices from 0 to ${size - 1}`, hosts);
  return { world: callNative((addon) => addon.openWorld(size, resolveTimeout(timeout), Uint32Array.from(hosts))) };
}

/** Throws an OptionError unless `rank` is one of `size`. */
export function checkRank({ rank = 0, size }: { readonly rank?: number; readonly size: number }): void {
  if (Number.isInteger(size) && size >= 1 && Number.isInteger(rank) && rank >= 0 && rank < size) return;
  throw new OptionError({
    where: "collectives",
    expected: "integers with 0 ≤ rank < world size",
    received: `rank ${rank} with world size ${size}`,
  });
}

/** Throws an OptionError unless these collectives serve the device. */
export function checkDeviceType(device: Device, type: string, where: string): void {
  if (device.type === type) return;
  throw new OptionError({
    where,
    expected: `a device of type ${type}`,
    received: device.type,
    remedy: "use collectives that support that device",
  });
}
