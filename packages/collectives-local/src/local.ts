import {
  type Collectives,
  type ConnectOptions,
  type Context,
  defineOptions,
  type Device,
  expectValue,
  formatValue,
  localWorldSize,
  option,
  OptionError,
  type OptionsOf,
} from "@mosaic/core";
import {
  checkDeviceType,
  connectProcess,
  findAddon,
  createInProcessCollectives,
  loadAddon,
  openWorld,
  type WorldOptions,
} from "@mosaic/runtime";

interface LocalAddon {
  readonly protocol: number;
  /**
   * Returns the address of a `MosaicTransport` over shared memory for one rank
   * (`packages/runtime/native/shared_memory`).
   */
  open(): number;
}

const addonPath = findAddon("mosaic_collectives_local", import.meta.url);
let cachedAddon: LocalAddon | undefined;

/** Returns the addon, which is loaded at the first call. Throws an AddonLoadError that lists likely causes. */
function loadLocalAddon(): LocalAddon {
  cachedAddon ??= loadAddon<LocalAddon>({
    packageName: "@mosaic/collectives-local",
    description: "the shared-memory transport",
    path: addonPath,
    protocol: 2, // `kBindingVersion` in native/addon.cc
    requirements: "g++ and CMake",
  });
  return cachedAddon;
}

/** Makes a transport over shared memory. Returns the address of its `MosaicTransport`. */
export function openTransport(): number {
  return loadLocalAddon().open();
}

export const localOptions = defineOptions("local", {
  /**
   * A name that is equal on all ranks, and different for worlds that form at the same time. Default: the launcher's
   * name of the job.
   */
  name: option.string({ optional: true }),
  /** Seconds to wait for the other ranks. An error names the missing ranks. Default: the timeout of collectives. */
  connectTimeout: option.number({
    above: 0,
    max: 1e9,
    expected: "seconds > 0, at most 1e9",
    optional: true,
  }),
});
/** Options of `local`. */
export type LocalOptions = OptionsOf<typeof localOptions>;

/**
 * Collectives for ranks that are processes of one host, over shared memory.
 *
 * The ranks rendezvous through the agent of the host. `mosaic-run` provides it; under other launchers the first rank
 * starts one. The shared memory has no name in a file system, so it is released when the processes end, for whatever
 * reason.
 *
 * @example
 * ```ts
 * import { local } from "@mosaic/collectives-local";
 * local().name; // => "local"
 * ```
 * @throws OptionError for unknown options and invalid values.
 */
export function local(options?: LocalOptions): Collectives {
  const { name, connectTimeout } = localOptions.parse(options);
  return {
    name: "local",
    async connect(connectOptions: ConnectOptions) {
      const { device, size } = connectOptions;
      checkDevice(device);
      checkHost(size);
      loadLocalAddon(); // fails before an agent is started needlessly
      return connectProcess({ ...connectOptions, kind: "local", name, connectTimeout, openTransport });
    },
  };
}

/** Throws an OptionError unless all ranks are on one host, and at most 1024, because memory grows with their square. */
function checkHost(size: number): void {
  checkSize("local collectives", size);
  const localSize = localWorldSize();
  if (localSize === undefined || localSize === size) return;
  throw new OptionError({
    where: "local collectives",
    expected: "all ranks on this host",
    received: `${localSize} of ${size} ranks`,
    remedy: "start all ranks on one host, or use collectives that span hosts, such as @mosaic/collectives-ucx",
  });
}

/**
 * Opens many ranks in this process, all driven by this thread. No rank ever blocks the host, so a program may post for
 * rank 0, then for rank 1, and so on. It is for tests, notebooks and debuggers, and uses no socket and no other
 * process.
 *
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { full } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const contexts = await world(3, { device: () => cpu({ threads: 1 }) });
 * const shares = contexts.map((ctx) => full(ctx, [2], ctx.rank + 1));
 * contexts.forEach((ctx, rank) => ctx.world.allReduce(shares[rank]!).wait());
 * Array.from(await shares[2]!.read()); // => [6, 6]
 * await Promise.all(contexts.map((ctx) => ctx.close()));
 * ```
 * @throws OptionError for an invalid size, or a device of a type other than "cpu".
 */
export async function world(size: number, options: WorldOptions): Promise<readonly Context[]> {
  checkSize("world", size);
  const collectives = createInProcessCollectives({
    ...{ name: "local", size, check: checkDevice },
    rank: (connectOptions) => {
      checkDevice(connectOptions.device);
      return { ...connectOptions, openTransport };
    },
  });
  return openWorld(size, collectives, options);
}

/**
 * Throws an OptionError unless `size` is an integer from 1 to 1024. The number of ring buffers is the square of the
 * ranks.
 */
function checkSize(where: string, size: number): void {
  expectValue(`${where}: size`, Number.isInteger(size) && size >= 1, "an integer number of ranks ≥ 1", size);
  if (size <= 1024) return;
  throw new OptionError({
    where: "local collectives",
    expected: "at most 1024 ranks",
    received: formatValue(size),
    remedy: "use symbolicWorld of @mosaic/planner for more ranks, which computes no values",
  });
}

function checkDevice(device: Device): void {
  checkDeviceType(device, "cpu", "local collectives");
}
