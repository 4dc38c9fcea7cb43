import { type Collectives, type Context, type Device, type InitOptions, init } from "@mosaic/core";
import { checkRank } from "./connect.ts";

/** What a world of one process takes. */
export interface WorldOptions extends Omit<InitOptions, "device" | "collectives" | "rank" | "worldSize"> {
  /** Makes the device of each rank; its context closes it. */
  readonly device: (rank: number) => Device;
}

/** Collectives that connect the ranks of one process. */
export interface InProcessCollectives extends Collectives {
  /** Throws unless these collectives serve the device. */
  check(device: Device): void;
}

/** Opens all ranks of a world in this process, or none. */
export async function openWorld(
  size: number,
  collectives: InProcessCollectives,
  { device, ...rest }: WorldOptions,
): Promise<readonly Context[]> {
  checkRank({ size });
  const devices = openDevices(size, collectives, device);
  const opening = devices.map((each, rank) => init({ ...rest, device: each, collectives, rank, worldSize: size }));
  const outcomes = await Promise.allSettled(opening);
  const failed = outcomes.find((outcome) => outcome.status === "rejected");
  if (!failed) return Promise.all(opening);
  for (const [rank, outcome] of outcomes.entries()) {
    if (outcome.status === "fulfilled") await outcome.value.close();
    else devices[rank]![Symbol.dispose]();
  }
  throw failed.reason;
}

/** All or none: a rank that cannot begin must not leave the others waiting for it. */
function openDevices(size: number, collectives: InProcessCollectives, open: (rank: number) => Device): Device[] {
  const devices: Device[] = [];
  try {
    for (let rank = 0; rank < size; rank++) {
      devices.push(open(rank));
      collectives.check(devices[rank]!);
    }
    return devices;
  } catch (error) {
    for (const device of devices) device[Symbol.dispose]();
    throw error;
  }
}
