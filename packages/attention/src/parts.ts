import { hostname } from "node:os";
import { local } from "@mosaic/collectives-local";
import { type Collectives, type Device, OptionError } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { makeCuda, placeOnHost, sharesGpus } from "./gpus.ts";
import { importOptional } from "./optional.ts";

type NcclPackage = typeof import("@mosaic/collectives-nccl");

/** NCCL takes one rank a GPU of a host; of ranks on different hosts it cannot know. */
function hostForNccl(): { hostId?: string } {
  return sharesGpus() && !process.env["NCCL_HOSTID"] ? { hostId: `${hostname()}/${placeOnHost().rank}` } : {};
}

/** @mosaic/collectives-nccl, which need not be installed. */
export function importNccl(): Promise<NcclPackage> {
  return importOptional<NcclPackage>("@mosaic/collectives-nccl", 'init: collectives "nccl"');
}

const devices = {
  cpu: async (): Promise<Device> => cpu(),
  cuda: (): Promise<Device> => makeCuda(),
} as const;

const collectives = {
  local: async (): Promise<Collectives> => local(),
  nccl: async (): Promise<Collectives> => (await importNccl()).nccl(hostForNccl()),
} as const;

export type DeviceName = keyof typeof devices;
export type CollectivesName = keyof typeof collectives;

/** What connects ranks that compute on devices of a type. */
export const partners: Readonly<Record<DeviceName, CollectivesName>> = { cpu: "local", cuda: "nccl" };

/** The device that collectives of that name serve; for somebody's own, the CPU. */
export function deviceServedBy(name: string): DeviceName {
  return name === partners.cuda ? "cuda" : "cpu";
}

/** The device of that name. Throws an OptionError for another name, or that names the package to install. */
export function makeDevice(name: DeviceName): Promise<Device> {
  return pick("init: device", name, devices)();
}

/** The collectives of that name; errors as above. */
export function makeCollectives(name: CollectivesName): Promise<Collectives> {
  return pick("init: collectives", name, collectives)();
}

/** What MOSAIC_DEVICE asks for; undefined if nothing, or "auto". */
export function deviceOfEnvironment(env: NodeJS.ProcessEnv = process.env): DeviceName | undefined {
  return nameIn(env, "MOSAIC_DEVICE", devices);
}

/** What MOSAIC_COLLECTIVES asks for. */
export function collectivesOfEnvironment(env: NodeJS.ProcessEnv = process.env): CollectivesName | undefined {
  return nameIn(env, "MOSAIC_COLLECTIVES", collectives);
}

function nameIn<Name extends string>(
  env: NodeJS.ProcessEnv,
  variable: string,
  choices: Readonly<Record<Name, unknown>>,
): Name | undefined {
  const name = env[variable];
  if (name === undefined || name === "" || name === "auto") return undefined;
  if (Object.hasOwn(choices, name)) return name as Name;
  throw new OptionError({
    where: `environment variable ${variable}`,
    expected: `${quoted(choices)} or "auto"`,
    received: JSON.stringify(name),
  });
}

function pick<T>(where: string, name: string, choices: Readonly<Record<string, T>>): T {
  if (Object.hasOwn(choices, name)) return choices[name]!;
  throw new OptionError({
    where,
    expected: `${quoted(choices)} or a value of your own`,
    received: JSON.stringify(name),
  });
}

function quoted(choices: Readonly<Record<string, unknown>>): string {
  return Object.keys(choices)
    .map((each) => `"${each}"`)
    .join(", ");
}
