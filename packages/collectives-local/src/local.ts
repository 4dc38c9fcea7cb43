import { checkOptionNames, type Collectives, type ConnectOptions, OptionError } from "@mosaic/core";
import { connectProcess } from "@mosaic/runtime";
import { addon, openTransport } from "./addon.ts";
import { checkDevice, checkSize } from "./world.ts";

export interface LocalOptions {
  /** The same on all ranks, and different for worlds that form at the same time. Default: the job, as the launcher names it. */
  readonly name?: string;
  /**
   * Seconds to wait for the other ranks; an error names those that are missing. Default: as long as a collective may take.
   */
  readonly connectTimeout?: number;
}

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
export function local(options: LocalOptions = {}): Collectives {
  checkOptionNames("local", options, ["name", "connectTimeout"]);
  checkOptions(options);
  return {
    name: "local",
    async connect(connecting: ConnectOptions) {
      const { device, size } = connecting;
      checkDevice(device);
      checkHost(size);
      addon(); // before an agent is started for nothing
      const { name, connectTimeout } = options;
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

function checkOptions({ name, connectTimeout = 1 }: LocalOptions): void {
  if (name !== undefined && typeof name !== "string") {
    throw new OptionError({ where: "local: name", expected: "a text", received: String(name) });
  }
  if (connectTimeout > 0 && connectTimeout <= 1e9) return;
  throw new OptionError({
    where: "local: connectTimeout",
    expected: "seconds, more than 0 and at most 1e9",
    received: String(connectTimeout),
  });
}
