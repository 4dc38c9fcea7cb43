import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import {
  type AttentionBackend,
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

/** Makes a backend along a mesh axis that leaves what is whole along this axis to `inner`. */
export type MakeLevel = (axis: string, inner: AttentionBackend) => AttentionBackend;

/** How the ranks along one axis work together: a name, or whatever makes such a backend. */
export type LevelStrategy = "ring" | "mesh2d" | "ulysses" | MakeLevel;

/** One axis of the mesh, and what is done along it. */
interface Level {
  readonly axis: string;
  readonly strategy: LevelStrategy;
}

const named = {
  ring: (axis, inner) => ring({ axis, inner }),
  mesh2d: (axis, inner) => mesh2d({ axis, inner }),
  ulysses: (axis, inner) => ulysses({ axis, inner }),
} as const satisfies Record<Exclude<LevelStrategy, MakeLevel>, MakeLevel>;

/**
 * Nests levels, given outermost first. Those that exchange rows for heads go outside all others: inside, they would do it
 * anew at every step around them, and the result is the same.
 */
export function nest(where: string, levels: readonly Level[]): AttentionBackend {
  const headParallel = ({ strategy }: Level) => strategy === "ulysses";
  const order = [...levels.filter(headParallel), ...levels.filter((level) => !headParallel(level))];
  const make = (strategy: LevelStrategy): MakeLevel => (typeof strategy === "function" ? strategy : named[strategy]);
  return order.reduceRight((inner, { axis, strategy }) => {
    const backend = make(strategy)(axis, inner);
    checkArgument(where, backend, option.backend());
    return backend;
  }, local());
}

/** The kind of option that a strategy of one level is. */
export function levelStrategy<const S extends OptionSettings<LevelStrategy>>(
  settings: S,
): Option<LevelStrategy, PresenceOf<S>> {
  const names = Object.keys(named) as readonly Exclude<LevelStrategy, MakeLevel>[];
  const isStrategy = (value: unknown): value is LevelStrategy =>
    typeof value === "function" || (names as readonly unknown[]).includes(value);
  const expected = `${names.map((name) => `"${name}"`).join(", ")} or (axis, inner) => backend`;
  const remedy = "choose one that reaches the keys of all ranks along its axis: the result must be exact";
  return option.custom(expected, isStrategy, { remedy, ...settings });
}

/** Nested backends under one name, which know the mesh that they need. */
export interface Strategy extends AttentionBackend {
  /** The mesh for so many ranks that share one sequence, as `init` takes it; throws an OptionError if they do not fit. */
  meshFor(ranks: number): Coordinate;
}

/** What a strategy asks of the mesh. */
interface MeshRule {
  readonly name: string;
  /** As `Strategy.meshFor`. */
  meshFor(ranks: number): Coordinate;
  /** What is wrong with a mesh whose lengths are right. */
  fault?(ctx: Context): string | undefined;
}

/** The nested backends themselves, after a look at the mesh. */
export function strategyOf(nested: AttentionBackend, rule: MeshRule): Strategy {
  const { axes } = nested;
  return {
    name: rule.name,
    description: `${rule.name}: ${describeBackend(nested)}`,
    axes,
    meshFor: rule.meshFor,
    check(ctx) {
      checkMesh(ctx, axes, rule);
      nested.check?.(ctx);
    },
    attend(ctx, call, state, kv) {
      checkMesh(ctx, axes, rule);
      nested.attend(ctx, call, state, kv);
    },
    attendBackward(ctx, call, grads, kv) {
      checkMesh(ctx, axes, rule);
      nested.attendBackward(ctx, call, grads, kv);
    },
  };
}

/** Axes of other names are free: ranks that differ along them have sequences of their own. */
function checkMesh(ctx: Context, axes: readonly string[], rule: MeshRule): void {
  const { shape } = ctx.mesh;
  const lengths = axes.map((axis) => shape[axis]);
  const known = lengths.every((length) => length !== undefined);
  const ranks = known ? lengths.reduce((product, length) => product * length, 1) : ctx.size;
  const mesh = rule.meshFor(ranks);
  const fits = Object.entries(mesh).every(([axis, length]) => shape[axis] === length);
  const fault = fits ? rule.fault?.(ctx) : `the mesh ${formatMesh(shape)}`;
  if (fault === undefined) return;
  throw new OptionError({
    where: `${rule.name}, rank ${ctx.rank}`,
    expected: `a mesh with ${formatMesh(mesh)}`,
    received: fault,
    remedy: `init({ mesh: ${formatMesh(ranks === ctx.size ? mesh : { dp: ctx.size / ranks, ...mesh })} })`,
  });
}

/** As one would write it: "{ seq: 4, head: 2 }". */
export function formatMesh(mesh: Coordinate): string {
  const entries = Object.entries(mesh).map(([axis, length]) => `${axis}: ${length}`);
  return `{ ${entries.join(", ")} }`;
}
