import type { ConnectOptions, ProcessGroup } from "@mosaic/core";
import { NativeGroup, NativeRank, timeoutOf } from "@mosaic/runtime";
import { loadNccl, type Meeting, native } from "./addon.ts";
import { NcclEngine } from "./engine.ts";
import { checkDevice, checkWorld, type NcclOptions } from "./options.ts";

/** How ranks come to know where they meet: rank 0 opens the place, the others hear of it. */
export type Rendezvous = (open: () => Meeting, seconds: number) => Promise<Meeting>;

/** What differs between ranks of one process and of many. */
export interface Way {
  readonly meet: Rendezvous;
  /** Where rank 0 listens: an address that the other ranks can reach. */
  readonly host: string;
  /** When closing: seconds to wait for ranks that do not move; negative: as long as the timeout allows. */
  readonly drainSeconds: number;
}

/** Joins the other ranks; resolves to the group of all. */
export async function join(connecting: ConnectOptions, options: NcclOptions, way: Way): Promise<ProcessGroup> {
  checkWorld(connecting);
  const { device, rank, size } = connecting;
  checkDevice(device);
  const timeoutSeconds = timeoutOf(options.timeout ?? connecting.timeout);
  const connectSeconds = timeoutOf(options.connectTimeout ?? timeoutSeconds);
  // NCCL reads it once, when it starts.
  if (options.hostId !== undefined) process.env.NCCL_HOSTID = options.hostId;
  const { minCtas = 0, maxCtas = 0, network = "", warmUp = true } = options;
  // Likewise; else it would connect the ranks once more when a large operation first takes another of its algorithms.
  if (warmUp) process.env.NCCL_RUNTIME_CONNECT ??= "0";
  loadNccl();
  const meeting = await way.meet(() => openMeeting(size, way.host, connectSeconds), connectSeconds);
  const engine = await NcclEngine.join({
    ...meeting,
    ...{ rank, size, minCtas, maxCtas, network, warmUp, connectSeconds, timeoutSeconds },
    drainSeconds: way.drainSeconds,
    stream: Number(device.stream.handle),
    device: Number(device.stream.port),
  });
  return NativeGroup.world(new NativeRank(device, engine), { rank, size });
}

function openMeeting(size: number, host: string, seconds: number): Meeting {
  return native((addon) => {
    const id = addon.uniqueId();
    const [port, token] = addon.openHub(size, host, seconds);
    return { host, port, token, id };
  });
}
