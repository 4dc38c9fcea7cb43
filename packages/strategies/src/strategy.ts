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

/** Makes a backend along a mesh axis that leaves what is whole along this axis to `inner`. */
export type BackendFactory = (axis: string, inner: AttentionBackend) => AttentionBackend;

/** How the ranks along one axis work together: a name, or whatever makes such a backend. */
export type LevelStrategy = "ring" | "mesh2d" | "ulysses" | "flex" | "local" | BackendFactory;

/** One axis of the mesh, and what is done along it. */
interface Level {
  readonly axis: string;
  readonly strategy: LevelStrategy;
}

const backendFactories = {
  ring: (axis, inner) => ring({ axis, inner }),
  mesh2d: (axis, inner) => mesh2d({ axis, inner }),
  ulysses: (axis, inner) => ulysses({ axis, inner }),
  flex: (axis, inner) => flex({ axis, inner }),
  // The keys that a rank requires are gathered first, in one group cast; then it computes alone.
  local: (axis, inner) => flex({ axis, inner, stages: 0 }),
} as const satisfies Record<Exclude<LevelStrategy, BackendFactory>, BackendFactory>;

/**
 * Nests levels, given outermost first. Those that exchange rows for heads go outside all others: inside, they would do it
 * anew at every step around them, and the result is the same.
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

/** Throws an OptionError unless a level's backend gathers keys along its axis and those of the levels inside, and no others. */
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

/** The kind of option that a strategy of one level is. */
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

/** Nested backends under one name, which know the mesh that they need. */
export interface Strategy extends AttentionBackend {
  /** The mesh for so many ranks that share one sequence, as `init` takes it; throws an OptionError if they do not fit. */
  meshFor(ranks: number): Coordinate;
}

/** What a strategy requires of the mesh. */
interface MeshRules {
  readonly name: string;
  /** As `Strategy.meshFor`. */
  meshFor(ranks: number): Coordinate;
  /** What is wrong with a mesh whose lengths are right. */
  findMeshError?(ctx: Context): string | undefined;
}

/** The nested backends themselves, after a look at the mesh; within another backend, their own way to take keys in parts. */
export function createStrategy(nestedBackend: AttentionBackend, requirements: MeshRules): Strategy {
  const { axes } = nestedBackend;
  return {
    ...(nestedBackend.blockwise && { blockwise: (from) => blockwise(nestedBackend, from) }),
    name: requirements.name,
    description: `${requirements.name}: ${describeBackend(nestedBackend)}`,
    axes,
    meshFor: requirements.meshFor,
    check(ctx) {
      checkMesh(ctx, axes, requirements);
      nestedBackend.check?.(ctx);
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

/** Axes of other names are free: ranks that differ along them have sequences of their own. */
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

/** The mesh that the strategy needs, of as many ranks as this one has along its axes. */
function resolveMesh({ mesh, size }: Context, axes: readonly string[], { meshFor }: MeshRules): Coordinate {
  const lengths = axes.map((axis) => mesh.shape[axis]);
  const areAllKnown = lengths.every((length) => length !== undefined);
  return meshFor(areAllKnown ? lengths.reduce((product, length) => product * length, 1) : size);
}
