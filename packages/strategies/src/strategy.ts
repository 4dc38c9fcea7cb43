import { type AttentionBackend, type Context, type Coordinate, OptionError } from "@mosaic/core";

/** Nested backends under one name, which know the mesh that they need. */
export interface Strategy extends AttentionBackend {
  /** The mesh for so many ranks that share one sequence, as `init` takes it; throws an OptionError if they do not fit. */
  meshFor(ranks: number): Coordinate;
}

/** What a strategy asks of the mesh. */
export interface MeshRule {
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

/** Numbers of ranks are whole numbers ≥ 1. */
export function checkRanks(where: string, name: string, ranks: number): void {
  if (Number.isSafeInteger(ranks) && ranks >= 1) return;
  throw new OptionError({ where, expected: `${name} a whole number of ranks, at least 1`, received: String(ranks) });
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
