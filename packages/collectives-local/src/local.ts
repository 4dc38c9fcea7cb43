import {
  type Collectives,
  type ConnectOptions,
  OptionError,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import { connectProcess } from "@mosaic/runtime";
import { addon, openTransport } from "./addon.ts";
import { checkDevice, checkSize } from "./world.ts";

export const localOptions = defineOptions("local", {
  /** The same on all ranks, and different for worlds that form at the same time. Default: the job, as the launcher names it. */
  name: option.string({ optional: true }),
  /** Seconds to wait for the other ranks; an error names those that are missing. Default: as long as a collective may take. */
  connectTimeout: option.number({
    above: 0,
    max: 1e9,
    expected: "seconds, more than 0 and at most 1e9",
    optional: true,
  }),
});
/** What `local` takes. */
export type LocalOptions = OptionsOf<typeof localOptions>;

/**
 * Collectives for ranks that are processes of one host, over shared memory.
 *
 * They rendezvous through the agent of the host, which `mosaic-run` provides; where something else started them, the first
 * rank starts one. The shared memory has no name in a file system: whatever ends a process releases all that it held.
 *
 * @example
 * ```ts
 * import { local } from "@mosaic/collectives-local";
 * local().name; // => "local"
 * ```
 * @throws OptionError for options that do not exist, or cannot be.
 */
export function local(options?: LocalOptions): Collectives {
  const { name, connectTimeout } = localOptions.parse(options);
  return {
    name: "local",
    async connect(connecting: ConnectOptions) {
      const { device, size } = connecting;
      checkDevice(device);
      checkHost(size);
      addon(); // before an agent is started for nothing
      return connectProcess({ ...connecting, kind: "local", name, connectTimeout, openTransport });
    },
  };
}

/** Ranks of one host, and not too many: rings of bytes grow with their square. */
function checkHost(size: number): void {
  checkSize(size);
  const { LOCAL_WORLD_SIZE } = process.env;
  if (LOCAL_WORLD_SIZE === undefined || Number(LOCAL_WORLD_SIZE) === size) return;
  throw new OptionError({
    where: "local collectives",
    expected: "all ranks on this host",
    received: `LOCAL_WORLD_SIZE ${LOCAL_WORLD_SIZE} of ${size} ranks`,
    remedy: "start all ranks on one host, or use collectives that span hosts",
  });
}
