import { type Context, expectValue } from "@mosaic/core";
import { inProcess, openWorld, type WorldOptions } from "@mosaic/runtime";
import { rankOptions } from "./nccl.ts";
import { checkDevice, type NcclOptions, parseOptions } from "./options.ts";

/** What a world of one process takes: `init`'s options, a device for each rank, and NCCL's. */
export interface NcclWorldOptions extends WorldOptions {
  readonly nccl?: NcclOptions;
}

/**
 * Many ranks in this process, each on a GPU of its own, all driven by this thread: for tests and debuggers.
 *
 * @throws as `nccl` does; NCCL refuses two ranks of one process on one GPU.
 */
export async function world(size: number, worldOptions: NcclWorldOptions): Promise<readonly Context[]> {
  const isSize = Number.isSafeInteger(size) && size >= 1;
  expectValue("world", isSize, "a whole number of ranks, at least 1", size);
  const isOptions = typeof worldOptions === "object" && worldOptions !== null;
  expectValue("world", isOptions, "an options object, { device }", worldOptions);
  const { nccl, ...options } = worldOptions;
  const settings = parseOptions(nccl);
  // This thread posts for all ranks in turn: NCCL must not make one wait for another when it launches.
  process.env.NCCL_RUNTIME_CONNECT ??= "0";
  // Of the same process, NCCL would look into tensors, which lie in a pool that only their own GPU reaches.
  process.env.NCCL_P2P_DIRECT_DISABLE ??= "1";
  // Nor may a kernel's first start: to load it then, CUDA waits for the GPU, which may wait for a rank that comes later.
  if (size > 1) process.env.CUDA_MODULE_LOADING ??= "EAGER";
  const collectives = inProcess({
    ...{ name: "nccl", size, check: checkDevice },
    rank: (connecting) => rankOptions(connecting, settings),
  });
  return openWorld(size, collectives, options);
}
