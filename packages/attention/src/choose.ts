import { type Collectives, type Device, OptionError } from "@mosaic/core";
import { type Detected, detect } from "./detect.ts";
import { placeOnHost } from "./gpus.ts";
import {
  type CollectivesName,
  collectivesOfEnvironment,
  type DeviceName,
  deviceOfEnvironment,
  deviceServedBy,
  makeCollectives,
  makeDevice,
  partners,
} from "./parts.ts";

/** What `init` was told. */
export interface Asked {
  readonly device?: Device | DeviceName;
  readonly collectives?: Collectives | CollectivesName;
}

/** What it works with. */
export interface Chosen {
  readonly device: Device;
  /** Whether `device` was made here, to be closed if nobody else comes to own it. */
  readonly isOurs: boolean;
  readonly collectives: Collectives | undefined;
}

/** Options first, then MOSAIC_DEVICE and MOSAIC_COLLECTIVES, then what goes with the other, then what is detected. */
export async function choose(asked: Asked, worldSize: number): Promise<Chosen> {
  const engine = asked.collectives ?? collectivesOfEnvironment();
  const place = asked.device ?? deviceOfEnvironment() ?? servedBy(engine) ?? (await detected(worldSize)).device;
  if (typeof place === "string" && typeof engine === "string") refuseMixed(place, engine);
  const connect = engine ?? (worldSize > 1 ? collectivesFor(place) : undefined);
  const device = typeof place === "string" ? await makeDevice(place) : place;
  const isOurs = device !== place;
  try {
    return { device, isOurs, collectives: typeof connect === "string" ? await makeCollectives(connect) : connect };
  } catch (error) {
    if (isOurs) device[Symbol.dispose]();
    throw error;
  }
}

function servedBy(engine: Collectives | CollectivesName | undefined): DeviceName | undefined {
  return engine && deviceServedBy(typeof engine === "string" ? engine : engine.name);
}

/** What connects such devices; for somebody's own, nobody here knows. */
function collectivesFor(place: Device | DeviceName): CollectivesName | undefined {
  return partners[(typeof place === "string" ? place : place.type) as DeviceName];
}

function refuseMixed(device: DeviceName, collectives: CollectivesName): void {
  const partner = partners[device];
  // What is no name at all is refused, with all names, by who makes it.
  if (partner === undefined || partner === collectives || !Object.values(partners).includes(collectives)) return;
  throw new OptionError({
    where: "init: collectives",
    expected: `"${partner}" with device "${device}"`,
    received: `"${collectives}"`,
    remedy: "name neither, or only one; also look at MOSAIC_DEVICE and MOSAIC_COLLECTIVES",
  });
}

let hasNoted = false;

/** What is detected; the first rank of each host tells, once, of a GPU that lies idle. */
async function detected(worldSize: number): Promise<Detected> {
  const found = await detect({ worldSize });
  if (found.note !== undefined && !hasNoted && placeOnHost().rank === 0) {
    hasNoted = true;
    process.emitWarning(found.note, { type: "MosaicWarning", code: "MOSAIC_GPU_IDLE" });
  }
  return found;
}
