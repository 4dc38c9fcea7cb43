import { type AttentionBackend, checkBackend, local } from "./attention/backend.ts";
import type { Collectives, ProcessGroup } from "./collectives/process-group.ts";
import type { Context } from "./context.ts";
import { contextToJson } from "./context-json.ts";
import { checkAxisNames, dataParallelAxis } from "./data-parallel.ts";
import { type Device, formatDevice, type TraceEvent } from "./device.ts";
import { ClosedError, OptionError } from "./errors.ts";
import { inspectAsString } from "./inspect.ts";
import { launchEnvironment } from "./launch-environment.ts";
import { type Coordinate, createMesh, type DeviceMesh } from "./mesh.ts";
import * as option from "./option.ts";
import { defineOptions, type OptionsOf, type ResolvedOptionsOf } from "./options.ts";
import { completeChecks } from "./pending-checks.ts";
import { nextStreamNumber } from "./random.ts";
import { singleRankGroup } from "./collectives/single-rank-group.ts";

/** Declares the options of `init`. */
export const initOptions = defineOptions("init", {
  /** The device of this rank. The context closes it; if init rejects, the caller still owns it. */
  device: option.custom("a device", option.hasMethods<Device>("empty", "write", "read"), {
    remedy: "pass a Device, such as cpu() or cuda()",
  }),
  /** The collectives that connect the ranks; required for more than one rank. Default: none. */
  collectives: option.custom("collectives", option.hasMethods<Collectives>("connect"), { optional: true }),
  /**
   * Rank of this process. Default: the value that the launcher sets, as `launchEnvironment` reads it; 0 without a
   * launcher.
   */
  rank: option.integer({ min: 0, optional: true }),
  /** Number of ranks of the job. Default: the value that the launcher sets; 1 without a launcher. */
  worldSize: option.integer({ min: 1, optional: true }),
  /**
   * Lengths of the named mesh axes. Their product must be the world size. Ranks along "dp", and along axes whose names
   * begin with "dp_", have different samples (data parallelism); ranks along all other axes share each sequence.
   * Default: { sp: worldSize }.
   */
  mesh: option.meshShape({ optional: true }),
  /** Number of ranks that share one sequence. Short for mesh { dp: worldSize / spSize, sp: spSize }. Default: all. */
  spSize: option.integer({ min: 1, optional: true }),
  /** Backends that modules may select by name. `local` is always available. Default: none. */
  backends: option.array(option.backend(), { optional: true }),
  /** Seed of parameters, the same on every rank. Default 0. */
  seed: option.integer({ min: 0, default: 0 }),
  /** Timeout of a collective in seconds. Default: the timeout of the collectives. */
  timeout: option.number({ above: 0, max: 1e9, expected: "seconds > 0, at most 1e9", optional: true }),
  /**
   * Called once before the context is closed, while it is still open, for example to write a trace. Default: nothing.
   */
  beforeClose: option.custom("a function", option.isFunction<(ctx: Context) => void | Promise<void>>, {
    optional: true,
  }),
});
/** Options of `init`. */
export type InitOptions = OptionsOf<typeof initOptions>;
type InitSettings = ResolvedOptionsOf<typeof initOptions>;

/** The modules that export the built-in backends. */
const backendModules: Readonly<Record<string, string>> = {
  ring: "@mosaic/backend-ring",
  mesh2d: "@mosaic/backend-mesh2d",
  ulysses: "@mosaic/backend-ulysses",
  flex: "@mosaic/backend-flex",
  composed: "@mosaic/strategies",
  hierarchical: "@mosaic/strategies",
  auto: "@mosaic/strategies/plan",
};

/**
 * Connects this rank to the other ranks and returns its context. Collective: every rank must call it with the same
 * mesh and seed. Different ones are a CollectiveMismatchError of the first collective that ranks have in common.
 *
 * @example
 * ```ts
 * import { init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * ctx.mesh.shape; // => { sp: 1 }
 * ```
 * @throws OptionError for unknown or incompatible options; ShapeError if the size of the mesh is not the world size.
 */
export async function init(options: InitOptions): Promise<Context> {
  const settings = initOptions.parse(options);
  const { rank, size } = resolveRank(settings);
  if (!Number.isInteger(size) || !Number.isInteger(rank) || size < 1 || rank < 0 || rank >= size) {
    throw new OptionError({
      where: "init",
      expected: "a rank from 0 to worldSize − 1",
      received: `rank ${rank} of ${size}`,
      remedy: "launch with mosaic-run, torchrun, mpirun or srun, which set both, or pass rank and worldSize",
    });
  }
  const shape = resolveMeshShape(settings, size);
  const backends = registerBackends(settings.backends ?? []);
  const collectives = settings.collectives ?? (size === 1 ? singleRankGroup() : throwMissingCollectivesError(size));
  const { device, timeout, seed, beforeClose } = settings;
  const world = await collectives.connect({ device, rank, size, ...(timeout !== undefined && { timeout }) });
  // A group of another mesh has other members, so that its ranks would wait for one another.
  if (size > 1) world.recordCall(() => `init: mesh ${JSON.stringify(shape)}, seed ${seed}`);
  try {
    return new RankContext({ device, backends, mesh: await createMesh(world, shape), seed, beforeClose });
  } catch (error) {
    await Promise.allSettled([world[Symbol.asyncDispose]()]);
    throw error;
  }
}

/** Returns rank and world size. Reads the environment only if the options do not set both. */
function resolveRank({ rank, worldSize }: InitSettings): { readonly rank: number; readonly size: number } {
  if (rank !== undefined && worldSize !== undefined) return { rank, size: worldSize };
  const launchEnv = launchEnvironment();
  return { rank: rank ?? launchEnv.rank, size: worldSize ?? launchEnv.worldSize };
}

function resolveMeshShape({ mesh, spSize }: InitSettings, size: number): Coordinate {
  if (mesh && spSize !== undefined) {
    throw new OptionError({
      where: "init",
      expected: "either mesh or spSize",
      received: "both",
      remedy: "remove spSize, and set sp in mesh",
    });
  }
  if (mesh) {
    checkAxisNames("init: mesh", mesh);
    return mesh;
  }
  if (spSize === undefined) return { sp: size };
  if (size % spSize === 0) return { [dataParallelAxis]: size / spSize, sp: spSize };
  throw new OptionError({
    where: "init: spSize",
    expected: `a divisor of the world size, ${size}`,
    received: String(spSize),
  });
}

function throwMissingCollectivesError(size: number): never {
  throw new OptionError({
    where: "init",
    expected: `collectives for ${size} ranks`,
    received: "none",
    remedy: "pass collectives, such as local() or nccl()",
  });
}

function registerBackends(customBackends: readonly AttentionBackend[]): ReadonlyMap<string, AttentionBackend> {
  // A custom backend named "local" replaces this one.
  const backends = new Map<string, AttentionBackend>([["local", local()]]);
  const customNames = new Set<string>();
  for (const backend of customBackends) {
    if (customNames.has(backend.name)) {
      throw new OptionError({
        where: "init: backends",
        expected: "unique names",
        received: `duplicate name "${backend.name}"`,
        remedy: 'pass the other backend itself to the call or module, or rename it: { ...backend, name: "…" }',
      });
    }
    customNames.add(backend.name);
    backends.set(backend.name, backend);
  }
  return backends;
}

interface ContextFields {
  readonly device: Device;
  readonly mesh: DeviceMesh;
  readonly backends: ReadonlyMap<string, AttentionBackend>;
  readonly seed: number;
  readonly beforeClose: ((ctx: Context) => void | Promise<void>) | undefined;
}

class RankContext implements Context {
  readonly device: Device;
  readonly mesh: DeviceMesh;
  readonly seed: number;
  randomStream = 0;
  readonly #backends: ReadonlyMap<string, AttentionBackend>;
  readonly #beforeClose: ContextFields["beforeClose"];
  #closePromise: Promise<void> | undefined;
  #isClosed = false;

  constructor({ device, mesh, backends, seed, beforeClose }: ContextFields) {
    this.device = device;
    this.mesh = mesh;
    this.seed = seed;
    this.#backends = backends;
    this.#beforeClose = beforeClose;
  }

  get world(): ProcessGroup {
    return this.mesh.world;
  }

  get rank(): number {
    return this.world.rank;
  }

  get size(): number {
    return this.world.size;
  }

  get backends(): readonly string[] {
    return [...this.#backends.keys()];
  }

  backend(nameOrValue: string | AttentionBackend): AttentionBackend {
    if (typeof nameOrValue !== "string") {
      checkBackend("backend", nameOrValue);
      return nameOrValue;
    }
    const backend = this.#backends.get(nameOrValue);
    if (backend) return backend;
    const moduleName = Object.hasOwn(backendModules, nameOrValue) ? backendModules[nameOrValue] : undefined;
    const packageName = moduleName?.split("/").slice(0, 2).join("/");
    throw new OptionError({
      where: "backend",
      expected: `one of ${this.backends.map((name) => `"${name}"`).join(", ")}`,
      received: `"${nameOrValue}"`,
      remedy: moduleName
        ? `npm install ${packageName} and pass ${nameOrValue}(…) of ${moduleName} in init({ backends: [...] })`
        : "pass the backend itself, or register it in init({ backends: [...] })",
    });
  }

  nextRandomStream(): number {
    return nextStreamNumber(() => this.randomStream++);
  }

  assertOpen(where: string): void {
    if (!this.#isClosed) return;
    throw new ClosedError({
      where,
      expected: "an open context",
      received: "a closed context",
      remedy: "finish all work before the context goes out of scope",
    });
  }

  static {
    inspectAsString(this.prototype);
  }

  /** Returns rank, mesh, device and backends, as shown by `console.log`. */
  toString(): string {
    const { rank, size, mesh, device, backends } = this;
    const axes = mesh.axes.map((axis) => `${axis} ${mesh.coordinate[axis]} of ${mesh.shape[axis]}`);
    const description = `Context rank ${rank} of ${size} (${axes.join(", ")}) on ${formatDevice(device)}`;
    return `${description}, seed ${this.seed}, backends ${backends.join(", ")}${this.#isClosed ? ", closed" : ""}`;
  }

  toJSON(): object {
    return contextToJson(this);
  }

  startTrace(): void {
    this.assertOpen("startTrace");
    this.device.startTrace();
    this.world.startTrace();
  }

  async stopTrace(): Promise<readonly TraceEvent[]> {
    this.assertOpen("stopTrace");
    const eventsByLane = await Promise.all([this.device.stopTrace(), this.world.stopTrace()]);
    return eventsByLane.flat().toSorted((a, b) => a.start - b.start);
  }

  close(): Promise<void> {
    this.#closePromise ??= this.#close();
    return this.#closePromise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /**
   * Calls `beforeClose`, then closes the subgroups, the world and the device, all of them even if one fails. Rejects with
   * the first failure, or with that of a check that no read has reported.
   */
  async #close(): Promise<void> {
    const groups = new Set(this.mesh.axes.map((axis) => this.mesh.group(axis)));
    groups.delete(this.world);
    const failures: unknown[] = [];
    const steps: readonly (() => void | Promise<void>)[] = [
      () => this.#beforeClose?.(this),
      () => void (this.#isClosed = true),
      ...[...groups, this.world].map((group) => async () => group[Symbol.asyncDispose]()),
      // After a failure, the device may wait for a rank that was lost.
      async () => (failures.length === 0 ? completeChecks(this.device) : undefined),
      () => this.device[Symbol.dispose](),
    ];
    for (const step of steps) {
      try {
        await step();
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  }
}
