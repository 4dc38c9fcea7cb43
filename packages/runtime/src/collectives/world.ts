import {
  type Collectives,
  type ConnectOptions,
  type Context,
  type Device,
  type InitOptions,
  init,
  checkFunction,
  expectValue,
} from "@mosaic/core";
import { connectRank, type ConnectRankOptions, type ControlPlane, createInProcessControl } from "./connect.ts";

/** Options of a world whose ranks are all in one process. */
export interface WorldOptions extends Omit<InitOptions, "device" | "collectives" | "rank" | "worldSize"> {
  /** Makes the device of each rank. The rank's context closes it. */
  readonly device: (rank: number) => Device;
}

/** Collectives that connect the ranks of one process. */
export interface InProcessCollectives extends Collectives {
  /** Throws unless these collectives support the device. */
  check(device: Device): void;
}

/**
 * In seconds. Without this limit, ranks of one thread that are closed in turn would wait for one another until the
 * timeout.
 */
const DRAIN_SECONDS = 5;

/** Options of `createInProcessCollectives`. */
export interface InProcessOptions extends Pick<InProcessCollectives, "name" | "check"> {
  readonly size: number;
  /** Host number of each rank, to simulate several hosts. Default: all ranks are on one host. */
  readonly hosts?: readonly number[] | undefined;
  /**
   * Returns the options to connect a rank, except its control plane. Throws unless these collectives support its
   * device.
   */
  rank(connectOptions: ConnectOptions): Omit<ConnectRankOptions, "control" | "drainSeconds">;
}

/** Creates collectives for ranks in one process. The rank that a context connects with is its rank in the world. */
export function createInProcessCollectives({ name, size, hosts, check, rank }: InProcessOptions): InProcessCollectives {
  let control: ControlPlane | undefined;
  return {
    name,
    check,
    async connect(connectOptions) {
      const options = rank(connectOptions);
      control ??= createInProcessControl(size, options.connectTimeout ?? options.timeout, hosts);
      return connectRank({ ...options, control, drainSeconds: DRAIN_SECONDS });
    },
  };
}

/** Opens all ranks of a world in this process. If one fails, closes all of them. */
export async function openWorld(
  size: number,
  collectives: InProcessCollectives,
  options: WorldOptions,
): Promise<readonly Context[]> {
  expectValue("world: size", Number.isInteger(size) && size >= 1, "an integer number of ranks ≥ 1", size);
  checkFunction("world: device", (options as Partial<WorldOptions> | null | undefined)?.device);
  const { device, ...worldOptions } = options;
  const devices = openDevices(size, collectives, device);
  const contextPromises = devices.map((rankDevice, rank) =>
    init({ ...worldOptions, device: rankDevice, collectives, rank, worldSize: size }),
  );
  const outcomes = await Promise.allSettled(contextPromises);
  const failedOutcome = outcomes.find((outcome) => outcome.status === "rejected");
  if (!failedOutcome) return Promise.all(contextPromises);
  // A rank that fails to close must not keep the others open or hide the error that is thrown below.
  for (const [rank, outcome] of outcomes.entries()) {
    const isOpen = outcome.status === "fulfilled";
    const close = async (): Promise<void> => (isOpen ? outcome.value.close() : devices[rank]![Symbol.dispose]());
    await Promise.allSettled([close()]);
  }
  throw failedOutcome.reason;
}

/** Opens all devices or none: if one cannot be opened, the other ranks must not wait for its rank. */
function openDevices(size: number, collectives: InProcessCollectives, openDevice: (rank: number) => Device): Device[] {
  const devices: Device[] = [];
  try {
    for (let rank = 0; rank < size; rank++) {
      const device = openDevice(rank);
      expectValue(
        "world: device(rank)",
        typeof (device as Partial<Device> | null)?.empty === "function",
        "a Device",
        device,
      );
      devices.push(device);
      collectives.check(devices[rank]!);
    }
    return devices;
  } catch (error) {
    for (const device of devices) device[Symbol.dispose]();
    throw error;
  }
}
