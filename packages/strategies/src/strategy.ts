import { flex } from "@mosaic/backend-flex";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import {
  type AttentionBackend,
  blockwise,
  type Context,
  type Coordinate,
  describeBackend,
  local,
  OptionError,
  checkArgument,
  option,
  type Option,
  type OptionSettings,
  type PresenceOf,
} from "@mosaic/core";
import { formatMesh, warnIfAxisCrossesHosts } from "./mesh-order.ts";

/** Creates a backend along a mesh axis. What is complete along this axis is computed by `inner`. */
export type BackendFactory = (axis: string, inner: AttentionBackend) => AttentionBackend;

/** How the ranks along one axis work together: a name, or a function that creates such a backend. */
export type LevelStrategy = "ring" | "mesh2d" | "ulysses" | "flex" | "local" | BackendFactory;

/** One axis of the mesh, and the strategy along it. */
interface Level {
  readonly axis: string;
  readonly strategy: LevelStrategy;
}

const backendFactories = {
  ring: (axis, inner) => ring({ axis, inner }),
  mesh2d: (axis, inner) => mesh2d({ axis, inner }),
  ulysses: (axis, inner) => ulysses({ axis, inner }),
  flex: (axis, inner) => flex({ axis, inner }),
  // The keys that a rank requires are gathered first, in one group-cast; then the rank computes alone.
  local: (axis, inner) => flex({ axis, inner, stages: 0 }),
} as const satisfies Record<Exclude<LevelStrategy, BackendFactory>, BackendFactory>;

/**
 * Nests levels, given outermost first. Levels that exchange rows for heads are moved outside all others: inside, they
 * would repeat the exchange at every step around them, with the same result.
 */
export function nestBackends(where: string, levels: readonly Level[]): AttentionBackend {
  const isHeadParallel = ({ strategy }: Level) => strategy === "ulysses";
  const orderedLevels = [...levels.filter(isHeadParallel), ...levels.filter((level) => !isHeadParallel(level))];
  const resolveFactory = (strategy: LevelStrategy): BackendFactory =>
    typeof strategy === "function" ? strategy : backendFactories[strategy];
  return orderedLevels.reduceRight((inner, { axis, strategy }) => {
    const backend = resolveFactory(strategy)(axis, inner);
    checkArgument(where, backend, option.backend());
    checkAxes(where, backend, [axis, ...inner.axes]);
    return backend;
  }, local());
}

/**
 * Throws an OptionError unless the axes of a level's backend are the axis of this level and those of the levels inside.
 */
function checkAxes(where: string, backend: AttentionBackend, axes: readonly string[]): void {
  const actualAxes = new Set(backend.axes);
  if (actualAxes.size === axes.length && axes.every((axis) => actualAxes.has(axis))) return;
  throw new OptionError({
    where,
    expected: `a backend along ${axes.join(", ")}`,
    received: `${describeBackend(backend)}, along ${backend.axes.length === 0 ? "no axis" : backend.axes.join(", ")}`,
    remedy: "pass both arguments of the strategy on, as in (axis, inner) => ring({ axis, inner })",
  });
}

/** Creates the option for the strategy of one level. */
export function levelStrategyOption<const S extends OptionSettings<LevelStrategy>>(
  settings: S,
): Option<LevelStrategy, PresenceOf<S>> {
  const names = Object.keys(backendFactories) as readonly Exclude<LevelStrategy, BackendFactory>[];
  const isStrategy = (value: unknown): value is LevelStrategy =>
    typeof value === "function" || (names as readonly unknown[]).includes(value);
  const expected = `${names.map((name) => `"${name}"`).join(", ")} or (axis, inner) => backend`;
  const remedy = "choose a strategy that attends to the keys of all ranks along its axis, so that the result is exact";
  return option.custom(expected, isStrategy, { remedy, ...settings });
}

/** Nested backends under one name, with the mesh that they need. */
export interface Strategy extends AttentionBackend {
  /**
   * Returns the mesh for `ranks` ranks that share one sequence, as `init` accepts it; throws an OptionError if they do
   * not fit.
   */
  meshFor(ranks: number): Coordinate;
}

/** Requirements of a strategy on the mesh. */
interface MeshRules {
  readonly name: string;
  /** See `Strategy.meshFor`. */
  meshFor(ranks: number): Coordinate;
  /** Returns what is wrong with a mesh whose lengths are right, if anything. */
  findMeshError?(ctx: Context): string | undefined;
}

/**
 * Creates a strategy from nested backends, which checks the mesh first. It has `blockwise` if the nested backend has
 * it.
 */
export function createStrategy(nestedBackend: AttentionBackend, requirements: MeshRules): Strategy {
  const { axes } = nestedBackend;
  return {
    ...(nestedBackend.blockwise && { blockwise: (from) => blockwise(nestedBackend, from) }),
    name: requirements.name,
    description: `${requirements.name}: ${describeBackend(nestedBackend)}`,
    axes,
    meshFor: requirements.meshFor,
    check(ctx, layouts) {
      checkMesh(ctx, axes, requirements);
      nestedBackend.check?.(ctx, layouts);
    },
    attend(ctx, call, state, kv) {
      checkMesh(ctx, axes, requirements);
      const innerAxis = Object.keys(resolveMesh(ctx, axes, requirements)).at(-1)!;
      warnIfAxisCrossesHosts(ctx, call, kv, { name: requirements.name, nested: nestedBackend, innerAxis });
      nestedBackend.attend(ctx, call, state, kv);
    },
    attendBackward(ctx, call, grads, kv) {
      checkMesh(ctx, axes, requirements);
      nestedBackend.attendBackward(ctx, call, grads, kv);
    },
  };
}

/** Checks the mesh. Other axes are not restricted; ranks that differ along them have different sequences. */
function checkMesh(ctx: Context, axes: readonly string[], requirements: MeshRules): void {
  const { shape } = ctx.mesh;
  const mesh = resolveMesh(ctx, axes, requirements);
  const ranks = Object.values(mesh).reduce((product, length) => product * length, 1);
  const hasExpectedMesh = Object.entries(mesh).every(([axis, length]) => shape[axis] === length);
  const problem = hasExpectedMesh ? requirements.findMeshError?.(ctx) : `the mesh ${formatMesh(shape)}`;
  if (problem === undefined) return;
  throw new OptionError({
    where: `${requirements.name}, rank ${ctx.rank}`,
    expected: `a mesh with ${formatMesh(mesh)}`,
    received: problem,
    remedy: `call init({ mesh: ${formatMesh(ranks === ctx.size ? mesh : { dp: ctx.size / ranks, ...mesh })} })`,
  });
}

/** Returns the mesh that the strategy needs for as many ranks as this mesh has along its axes. */
function resolveMesh({ mesh, size }: Context, axes: readonly string[], { meshFor }: MeshRules): Coordinate {
  const lengths = axes.map((axis) => mesh.shape[axis]);
  const areAllKnown = lengths.every((length) => length !== undefined);
  return meshFor(areAllKnown ? lengths.reduce((product, length) => product * length, 1) : size);
}
