import { createHash } from "node:crypto";
import { checkOptionNames, type Collectives, type ConnectOptions, OptionError } from "@mosaic/core";
import { NativeGroup, NativeRank, timeoutOf } from "@mosaic/runtime";
import { LocalEngine } from "./engine.ts";
import { addon, type Member, nativeLater } from "./native.ts";
import { checkWorld, streamOf } from "./options.ts";

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
      checkWorld(connecting);
      const { device, rank, size } = connecting;
      const member = size === 1 ? joinAlone(connecting) : await meet(connecting, options);
      return NativeGroup.world(new NativeRank(device, new LocalEngine(member)), { rank, size });
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

function joinAlone({ device, timeout }: ConnectOptions): Member {
  const { openSegment, joinSegment } = addon();
  return joinSegment(openSegment(1), 0, streamOf(device), timeoutOf(timeout));
}

function meet({ device, rank, size, timeout }: ConnectOptions, options: LocalOptions): Promise<Member> {
  const stream = streamOf(device);
  const seconds = timeoutOf(timeout);
  const patience = options.connectTimeout ?? seconds;
  const name = createHash("sha256")
    .update(options.name ?? jobName(size))
    .digest("hex")
    .slice(0, 32);
  return nativeLater((native) => native.connect(name, rank, size, patience, seconds, stream));
}

/** What tells this job's ranks from those of any other on this host. */
function jobName(size: number): string {
  const { MASTER_ADDR = "", MASTER_PORT, MOSAIC_RUN_ID, MOSAIC_ATTEMPT = "", LOCAL_WORLD_SIZE } = process.env;
  if (LOCAL_WORLD_SIZE !== undefined && Number(LOCAL_WORLD_SIZE) !== size) {
    throw new OptionError({
      where: "local collectives",
      expected: "all ranks on this host",
      received: `LOCAL_WORLD_SIZE ${LOCAL_WORLD_SIZE} of ${size} ranks`,
      remedy: "start all ranks on one host, or use collectives that span hosts",
    });
  }
  if (MASTER_PORT === undefined && MOSAIC_RUN_ID === undefined) {
    throw new OptionError({
      where: "local collectives",
      expected: "the name of a job to meet in",
      received: "neither MASTER_PORT nor MOSAIC_RUN_ID in the environment",
      remedy: "start the ranks with mosaic-run, or pass local({ name })",
    });
  }
  return JSON.stringify([MASTER_ADDR, MASTER_PORT ?? "", MOSAIC_RUN_ID ?? "", MOSAIC_ATTEMPT]);
}
