import { availableParallelism } from "node:os";
import { flex } from "@mosaic/backend-flex";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { world as worldOf, type WorldOptions as LocalOptions } from "@mosaic/collectives-local";
import {
  type AttentionBackend,
  type Context,
  defineOptions,
  type Device,
  expectValue,
  init as initCore,
  type InitOptions as CoreInitOptions,
  initOptions as coreOptions,
  launchEnvironment,
  option,
  OptionError,
  type OptionsOf,
  type ResolvedOptionsOf,
} from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import type { ContextTrace } from "@mosaic/planner";
import { selectHardware } from "./detect.ts";
import { collectivesNames, deviceNames, quoteNames } from "./device-factories.ts";

export const initOptions = defineOptions("init", {
  ...coreOptions.fields,
  /**
   * Where this rank computes: "cpu", "cuda" for the GPU of its number on this host, or a device of your own. Default:
   * MOSAIC_DEVICE, else what the collectives serve, else what `detect` finds.
   */
  device: option.either(option.oneOf(deviceNames), coreOptions.fields.device, {
    expected: `${quoteNames(deviceNames)} or a custom object`,
    optional: true,
  }),
  /**
   * How the ranks are connected: "local", "nccl", "ucx", or your own. Default: MOSAIC_COLLECTIVES, else what serves the device
   * on as many hosts as there are.
   */
  collectives: option.either(option.oneOf(collectivesNames), coreOptions.fields.collectives, {
    expected: `${quoteNames(collectivesNames)} or a custom object`,
    optional: true,
  }),
});
/** As in @mosaic/core, but everything has a default. */
export type InitOptions = OptionsOf<typeof initOptions>;

/**
 * Connects this rank to the others and gives it its context, with what is left out detected: a GPU for each rank and NCCL
 * between them where the machine has both, else the CPU and shared memory, or UCX where ranks are on several hosts; rank and
 * number of ranks from the environment that `mosaic-run` sets; and `ring()`, `mesh2d()`, `ulysses()` and `flex()` beside
 * `local()` among the backends that modules may name.
 *
 * Collective: every rank calls it, with the same mesh. A requested part that is not available is an error that names the
 * package to install. Where nothing is requested and a GPU is there but unfit, a warning reports why, once, and
 * `ctx.device.type` is "cpu".
 *
 * @example
 * ```ts
 * import * as mosaic from "@mosaic/attention";
 * await using ctx = await mosaic.init({ device: "cpu" });
 * ctx.mesh.shape; // => { sp: 1 }
 * ctx.backend("ring").axes; // => ["sp"]
 * ```
 * @throws OptionError for options that do not exist, do not go together or name a package that is not installed.
 */
export async function init(options?: InitOptions): Promise<Context> {
  const {
    device: requestedDevice,
    collectives: requestedCollectives,
    backends = [],
    ...initSettings
  } = initOptions.parse(options);
  const size = initSettings.worldSize ?? launchEnvironment().worldSize;
  checkLaunchedSize(initSettings, size);
  const requestedHardware = {
    ...(requestedDevice && { device: requestedDevice }),
    ...(requestedCollectives && { collectives: requestedCollectives }),
  };
  const { device, isOwned, collectives } = await selectHardware(requestedHardware, size);
  try {
    return await initTraced({
      ...initSettings,
      device,
      backends: addDefaultBackends(backends),
      ...(collectives && { collectives }),
    });
  } catch (error) {
    if (isOwned) device[Symbol.dispose]();
    throw error;
  }
}

/** With MOSAIC_TRACE_DIR, which `mosaic-run --trace` sets, a rank traces itself until it closes its context. */
async function initTraced(options: CoreInitOptions): Promise<Context> {
  const { MOSAIC_TRACE_DIR: directory, MOSAIC_TRACE_SECONDS: seconds } = process.env;
  if (!directory) return initCore(options);
  const { traceContext } = await import("@mosaic/planner");
  let trace: ContextTrace | undefined;
  const { beforeClose } = options;
  const ctx = await initCore({
    ...options,
    beforeClose: async (tracedContext) => {
      await beforeClose?.(tracedContext);
      await trace?.stop();
    },
  });
  try {
    trace = await traceContext(ctx, { directory, ...(seconds && { seconds: Number(seconds) }) });
  } catch (error) {
    await ctx.close();
    throw error;
  }
  return ctx;
}

/** Adds the backends over "sp" whose names are not taken already; `local` core adds itself. */
function addDefaultBackends(backends: readonly AttentionBackend[]): readonly AttentionBackend[] {
  const usedNames = new Set(backends.map(({ name }) => name));
  return [...backends, ...[ring(), mesh2d(), ulysses(), flex()].filter(({ name }) => !usedNames.has(name))];
}

type MeshOptions = Pick<ResolvedOptionsOf<typeof initOptions>, "spSize" | "mesh" | "worldSize">;

/** The commonest mistake: a program of several ranks started without the launcher. */
function checkLaunchedSize({ spSize, mesh, worldSize }: MeshOptions, size: number): void {
  const requiredRanks = spSize ?? Object.values(mesh ?? {}).reduce((product, length) => product * length, 1);
  if (requiredRanks <= size || size !== 1 || worldSize !== undefined) return;
  throw new OptionError({
    where: `init: ${spSize === undefined ? "mesh" : "spSize"}`,
    expected: `${spSize === undefined ? "a mesh of 1 rank" : "1"}, as no launcher started this process`,
    received: spSize === undefined ? JSON.stringify(mesh) : String(spSize),
    remedy: `start it with npx mosaic-run --nproc-per-node ${requiredRanks} <script>`,
  });
}

/** As in @mosaic/collectives-local, but the device has a default. */
export interface WorldOptions extends Omit<LocalOptions, "device"> {
  /** Makes the device of each rank; its context closes it. Default: the CPU, its cores shared out among the ranks. */
  readonly device?: (rank: number) => Device;
}

/**
 * Many ranks in this process, all driven by this thread, with the same defaults as `init`: for tests, notebooks and
 * debuggers. The caller closes the contexts.
 *
 * @example
 * ```ts
 * import * as mosaic from "@mosaic/attention";
 * const contexts = await mosaic.world(4, { spSize: 2 });
 * contexts.map((ctx) => ctx.mesh.coordinate.sp); // => [0, 1, 0, 1]
 * await Promise.all(contexts.map((ctx) => ctx.close()));
 * ```
 */
export async function world(size: number, options: WorldOptions = {}): Promise<readonly Context[]> {
  expectValue("world", typeof options === "object" && options !== null, "an options object", options);
  const {
    device = (): Device => cpu({ threads: computeThreadsPerRank(size) }),
    backends = [],
    ...localOptions
  } = options;
  expectValue("world: backends", Array.isArray(backends), "an array of backends", backends);
  return worldOf(size, { ...localOptions, device, backends: addDefaultBackends(backends) });
}

function computeThreadsPerRank(ranks: number): number {
  return Math.max(1, Math.floor(availableParallelism() / ranks));
}
