import { local } from "@mosaic/collectives-local";
import { type Collectives, type Device, OptionError } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";

const devices = {
  cpu: async (): Promise<Device> => cpu(),
  cuda: (): Promise<Device> => makeOptional("@mosaic/kernels-cuda", "cuda", 'init: device "cuda"'),
} as const;

const collectives = {
  local: async (): Promise<Collectives> => local(),
  nccl: (): Promise<Collectives> => makeOptional("@mosaic/collectives-nccl", "nccl", 'init: collectives "nccl"'),
} as const;

export type DeviceName = keyof typeof devices;
export type CollectivesName = keyof typeof collectives;

/** The device of that name. Throws an OptionError that names the package to install if it is absent. */
export function makeDevice(name: DeviceName): Promise<Device> {
  return pick("init: device", name, devices)();
}

/** The collectives of that name; errors as above. */
export function makeCollectives(name: CollectivesName): Promise<Collectives> {
  return pick("init: collectives", name, collectives)();
}

function pick<T>(where: string, name: string, choices: Readonly<Record<string, T>>): T {
  if (Object.hasOwn(choices, name)) return choices[name]!;
  const names = Object.keys(choices).map((each) => `"${each}"`);
  throw new OptionError({
    where,
    expected: `${names.join(", ")} or a value of your own`,
    received: JSON.stringify(name),
  });
}

/** Calls a factory of a package that need not be installed. */
export async function makeOptional<T>(from: string, factory: string, where: string): Promise<T> {
  const { [factory]: make } = await importOptional(from, where);
  return (make as () => T)();
}

async function importOptional(from: string, where: string): Promise<Readonly<Record<string, unknown>>> {
  try {
    return (await import(from)) as Readonly<Record<string, unknown>>;
  } catch (error) {
    if (!isAbsent(error, from)) throw error;
    throw new OptionError(
      { where, expected: `the package ${from}`, received: "none", remedy: `npm install ${from}` },
      { cause: error },
    );
  }
}

/** The package itself is missing, not something that it needs. */
function isAbsent(error: unknown, from: string): boolean {
  const { code, message } = error as NodeJS.ErrnoException;
  return code === "ERR_MODULE_NOT_FOUND" && message.includes(`'${from}'`);
}
