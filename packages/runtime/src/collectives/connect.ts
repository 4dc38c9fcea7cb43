import { type ConnectOptions, type Device, OptionError, type ProcessGroup } from "@mosaic/core";
import { type InProcessWorld, native } from "./addon.ts";
import { NativeGroup } from "./group.ts";
import { NativeRank } from "./rank.ts";
import { timeoutOf } from "./timeout.ts";

/** What connects a rank with the others beside the transport: rendezvous, failures, positions, group splits. */
export interface ControlPlane {
  /** Ranks of this process share it: see `inProcessControl`. */
  readonly world: InProcessWorld;
}

/** How a rank is connected. */
export interface ConnectRankOptions extends ConnectOptions {
  /** Makes the transport of this rank: the address of a `MosaicTransport` (mosaic/transport.h), which the engine closes. */
  readonly openTransport: () => number;
  readonly control: ControlPlane;
  /** Seconds for the transport to connect the ranks once all are there. Default: `timeout`. */
  readonly connectTimeout?: number;
  /** When closing: seconds to wait for ranks that do not move. Default: as long as the timeout allows. */
  readonly drainSeconds?: number;
}

/**
 * Connects this rank with the others over a transport; resolves to the group of all ranks.
 *
 * @throws OptionError for a rank or size that cannot be; what the transport reports; CollectiveTimeoutError that names the
 * ranks that are missing.
 */
export async function connectRank(options: ConnectRankOptions): Promise<ProcessGroup> {
  const { device, rank, size, timeout, openTransport, control, drainSeconds = -1 } = options;
  const timeoutSeconds = timeoutOf(timeout);
  checkRank({ rank, size });
  const { stream } = device;
  const opened = await NativeRank.open(device, {
    transport: openTransport(),
    rank,
    size,
    stream: Number(stream.handle),
    port: Number(stream.port ?? 0n),
    timeoutSeconds,
    connectSeconds: timeoutOf(options.connectTimeout ?? timeoutSeconds),
    drainSeconds,
    world: control.world,
  });
  return NativeGroup.world(opened, { rank, size });
}

/** The control plane of ranks that are all in this process: memory, no socket. They wait `timeout` s for one another. */
export function inProcessControl(size: number, timeout?: number): ControlPlane {
  return { world: native((addon) => addon.openWorld(size, timeoutOf(timeout))) };
}

/** Throws an OptionError unless `rank` is one of `size`. */
export function checkRank({ rank = 0, size }: { readonly rank?: number; readonly size: number }): void {
  if (Number.isInteger(size) && size >= 1 && Number.isInteger(rank) && rank >= 0 && rank < size) return;
  throw new OptionError({
    where: "collectives",
    expected: "a rank below the size",
    received: `rank ${rank} of ${size}`,
  });
}

/** Throws an OptionError unless these collectives serve the device. */
export function checkDeviceType(device: Device, type: string, where: string): void {
  if (device.type === type) return;
  throw new OptionError({
    where,
    expected: `a device of type ${type}`,
    received: device.type,
    remedy: "connect with collectives that are made for that device",
  });
}
