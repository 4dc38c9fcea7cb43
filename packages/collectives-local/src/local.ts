import { checkOptionNames, type Collectives, type ConnectOptions, OptionError } from "@mosaic/core";
import { checkDevice, checkSize, inProcess } from "./world.ts";

export interface LocalOptions {
  /** The same on all ranks, and different for worlds that form at the same time. Default: the job, as the launcher names it. */
  readonly name?: string;
  /**
   * Seconds to wait for the other ranks, of which rank 0 then names those that are missing. Default: as long as a collective
   * may take.
   */
  readonly connectTimeout?: number;
}

/**
 * Collectives for ranks that are processes of one host, over shared memory.
 *
 * The ranks meet by an abstract socket named after MASTER_ADDR, MASTER_PORT, MOSAIC_RUN_ID and MOSAIC_ATTEMPT, which
 * the launcher sets. Nothing is ever created on disk; whatever ends a process ends all that it held.
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
      checkSize(connecting.size);
      if (connecting.size === 1) return inProcess(1).connect(connecting);
      checkDevice(connecting.device);
      throw new Error("the control plane between processes is not there yet");
    },
  };
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
