import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import {
  type AttentionBackend,
  type Context,
  defineOptions,
  init as initCore,
  initOptions as coreOptions,
  option,
  type OptionsOf,
  type ResolvedOptionsOf,
  OptionError,
} from "@mosaic/core";
import { selectDevice } from "./detect.ts";
import { collectivesNames, deviceNames, quoted } from "./device-factories.ts";

export const initOptions = defineOptions("init", {
  ...coreOptions.fields,
  /**
   * Where this rank computes: "cpu", "cuda" for the GPU of its number on this host, or a device of your own. Default:
   * MOSAIC_DEVICE, else what the collectives serve, else what `detect` finds.
   */
  device: option.either(option.oneOf(deviceNames), coreOptions.fields.device, {
    expected: `${quoted(deviceNames)} or a value of your own`,
    optional: true,
  }),
  /** How the ranks are connected: "local", "nccl", or your own. Default: MOSAIC_COLLECTIVES, else what serves the device. */
  collectives: option.either(option.oneOf(collectivesNames), coreOptions.fields.collectives, {
    expected: `${quoted(collectivesNames)} or a value of your own`,
    optional: true,
  }),
});
/** As in @mosaic/core, but everything has a default. */
export type InitOptions = OptionsOf<typeof initOptions>;

/**
 * Connects this rank to the others and gives it its context, with what is left out detected: a GPU for each rank and NCCL
 * between them where the machine has both, else the CPU and shared memory; rank and number of ranks from the environment
 * that `mosaic-run` sets; and `ring()`, `mesh2d()` and `ulysses()` beside `local()` among the backends that modules may name.
 *
 * Collective: every rank calls it, with the same mesh. What is asked for and cannot be had is an error that names the
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
  const { device: wanted, collectives: engine, backends = [], ...rest } = initOptions.parse(options);
  const size = rest.worldSize ?? Number(process.env["WORLD_SIZE"] || 1);
  checkLaunched(rest, size);
  const requested = { ...(wanted && { device: wanted }), ...(engine && { collectives: engine }) };
  const { device, isOurs, collectives } = await selectDevice(requested, size);
  try {
    return await initCore({ ...rest, device, backends: withDefaults(backends), ...(collectives && { collectives }) });
  } catch (error) {
    if (isOurs) device[Symbol.dispose]();
    throw error;
  }
}

/** Adds the backends over "sp" whose names are not taken already; `local` core adds itself. */
export function withDefaults(backends: readonly AttentionBackend[]): readonly AttentionBackend[] {
  const taken = new Set(backends.map(({ name }) => name));
  return [...backends, ...[ring(), mesh2d(), ulysses()].filter(({ name }) => !taken.has(name))];
}

type Shape = Pick<ResolvedOptionsOf<typeof initOptions>, "spSize" | "mesh" | "worldSize">;

/** The commonest mistake: a program of several ranks started without the launcher. */
function checkLaunched({ spSize, mesh, worldSize }: Shape, size: number): void {
  const wanted = spSize ?? Object.values(mesh ?? {}).reduce((product, length) => product * length, 1);
  if (wanted <= size || size !== 1 || worldSize !== undefined) return;
  throw new OptionError({
    where: `init: ${spSize === undefined ? "mesh" : "spSize"}`,
    expected: "1, as this process is alone",
    received: spSize === undefined ? JSON.stringify(mesh) : String(spSize),
    remedy: `start it with npx mosaic-run --nproc-per-node ${wanted} <script>`,
  });
}
