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
   * The device of this rank: "cpu", "cuda" (the GPU whose index is the rank's local rank), or a custom device. Default:
   * MOSAIC_DEVICE, else the device that the collectives support, else the result of `detect`.
   */
  device: option.either(option.oneOf(deviceNames), coreOptions.fields.device, {
    expected: `${quoteNames(deviceNames)} or a custom object`,
    optional: true,
  }),
  /**
   * The collectives: "local", "nccl", "ucx", or a custom implementation. Default: MOSAIC_COLLECTIVES, else those that
   * support the device and the number of hosts.
   */
  collectives: option.either(option.oneOf(collectivesNames), coreOptions.fields.collectives, {
    expected: `${quoteNames(collectivesNames)} or a custom object`,
    optional: true,
  }),
});
/** As InitOptions of @mosaic/core, but every option has a default. */
export type InitOptions = OptionsOf<typeof initOptions>;

/**
 * Connects this rank to the other ranks and returns its context. Omitted options are detected. The device is a GPU for
 * each rank with NCCL if the machine has both; otherwise the CPU with shared memory, or with UCX if ranks are on
 * several hosts. Rank and world size are read from the environment that `mosaic-run` sets. The backends `ring()`,
 * `mesh2d()`, `ulysses()` and `flex()` are registered in addition to `local()`, so that modules can refer to them by
 * name.
 *
 * This is a collective call: every rank must call it with the same mesh. If a requested part is not available, the
 * error names the package to install. If nothing is requested and a GPU is present but unusable, a warning reports the
 * reason once, and `ctx.device.type` is "cpu".
 *
 * @example
 * ```ts
 * import * as mosaic from "@mosaic/attention";
 * await using ctx = await mosaic.init({ device: "cpu" });
 * ctx.mesh.shape; // => { sp: 1 }
 * ctx.backend("ring").axes; // => ["sp"]
 * ```
 * @throws OptionError for unknown options, incompatible options, a package that is not installed, or a MOSAIC_TRACE_DIR
 * that cannot be created or written.
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

/**
 * Calls `init` of core. With MOSAIC_TRACE_DIR, which `mosaic-run --trace` sets, also traces this rank until its context
 * is closed.
 */
async function initTraced(options: CoreInitOptions): Promise<Context> {
  const directory = process.env.MOSAIC_TRACE_DIR;
  if (!directory) return initCore(options);
  const seconds = readTraceSeconds();
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
    trace = await traceContext(ctx, { directory, ...(seconds !== undefined && { seconds }) });
  } catch (error) {
    await ctx.close();
    // The number of seconds is valid, so an OptionError is about the directory.
    if (!(error instanceof OptionError)) throw error;
    const details = {
      ...error.details,
      where: "environment variable MOSAIC_TRACE_DIR",
      remedy: "set it to a different directory, or unset it",
    };
    throw new OptionError(details, { cause: error });
  }
  return ctx;
}

/** The largest `seconds` of `traceContext`. */
const MAX_TRACE_SECONDS = 2_000_000;

/** Returns the limit on the duration of a trace; undefined if MOSAIC_TRACE_SECONDS is unset or empty. */
function readTraceSeconds(): number | undefined {
  const text = process.env.MOSAIC_TRACE_SECONDS;
  if (!text) return undefined;
  const seconds = Number(text);
  if (seconds > 0 && seconds <= MAX_TRACE_SECONDS) return seconds;
  throw new OptionError({
    where: "environment variable MOSAIC_TRACE_SECONDS",
    expected: `a number above 0 and at most ${MAX_TRACE_SECONDS}`,
    received: JSON.stringify(text),
  });
}

/** Adds the default backends along "sp" whose names are not in use. Core adds `local`. */
function addDefaultBackends(backends: readonly AttentionBackend[]): readonly AttentionBackend[] {
  const usedNames = new Set(backends.map(({ name }) => name));
  return [...backends, ...[ring(), mesh2d(), ulysses(), flex()].filter(({ name }) => !usedNames.has(name))];
}

type MeshOptions = Pick<ResolvedOptionsOf<typeof initOptions>, "spSize" | "mesh" | "worldSize">;

/**
 * Throws an OptionError for the most common mistake: a program for several ranks that was started without a launcher.
 */
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

/** As WorldOptions of @mosaic/collectives-local, but the device has a default. */
export interface WorldOptions extends Omit<LocalOptions, "device"> {
  /**
   * Creates the device of each rank, which its context closes. Default: the CPU, with its cores divided among the
   * ranks.
   */
  readonly device?: (rank: number) => Device;
}

/**
 * Creates several ranks in this process, all driven by this thread, with the same defaults as `init`. Intended for
 * tests, notebooks and debuggers. The caller closes the contexts.
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
