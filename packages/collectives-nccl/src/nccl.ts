import { type Collectives, OptionError } from "@mosaic/core";
import type { Meeting } from "./addon.ts";
import { join, type Way } from "./join.ts";
import { checkOptions, type NcclOptions } from "./options.ts";
import { connectStore, type Store } from "./store.ts";

/**
 * Collectives for ranks on NVIDIA GPUs, over NCCL 2.18 or newer, which is loaded when the ranks connect: from
 * MOSAIC_NCCL_LIBRARY, else by its usual names, else from Python's packages.
 *
 * Ranks started by `mosaic-run` find one another through its store. The group that `connect` resolves to has the
 * contract of all process groups: what a collective does is enqueued, runs on a stream of its own beside compute, and
 * reductions give all ranks the same bits.
 *
 * @throws OptionError for options that do not exist; `connect` rejects with DeviceError, which says what to install,
 * where there is no NCCL, or too old a one, and with CollectiveTimeoutError, which names the ranks that did not come.
 * @example
 * ```ts
 * import { nccl } from "@mosaic/collectives-nccl";
 * nccl({ maxCtas: 8 }).name; // => "nccl"
 * ```
 */
export function nccl(options: NcclOptions = {}): Collectives {
  checkOptions(options);
  return {
    name: "nccl",
    connect: (connecting) => join(connecting, options, between(connecting.rank, connecting.size, options)),
  };
}

/** Ranks that are processes. */
function between(rank: number, size: number, { name = "world", store: given }: NcclOptions): Way {
  const key = `mosaic/nccl/${name}`;
  return {
    // Where rank 0 is reached is where the launcher of its node is.
    host: process.env.MOSAIC_NODE_ADDR || "127.0.0.1",
    drainSeconds: -1,
    async meet(open, seconds) {
      if (size === 1) return open();
      await using store = given ? borrowed(given) : await connectStore();
      if (rank > 0) return decode(await store.take(key, { timeoutMs: Math.ceil(seconds * 1000) }));
      const meeting = open();
      await store.set(key, encode(meeting));
      return meeting;
    },
  };
}

/** A store of the caller's stays open. */
function borrowed(store: Store): Store & AsyncDisposable {
  return {
    set: (key, value) => store.set(key, value),
    take: (key, waiting) => store.take(key, waiting),
    async [Symbol.asyncDispose]() {},
  };
}

function encode({ id, ...rest }: Meeting): string {
  return JSON.stringify({ ...rest, id: Buffer.from(id).toString("base64") });
}

function decode(text: Uint8Array): Meeting {
  try {
    const { host, port, token, id } = JSON.parse(Buffer.from(text).toString()) as Record<string, unknown>;
    return { host: String(host), port: Number(port), token: String(token), id: Buffer.from(String(id), "base64") };
  } catch (cause) {
    throw new OptionError(
      { where: "nccl: store", expected: "what rank 0 of this version writes", received: "something else" },
      { cause },
    );
  }
}
