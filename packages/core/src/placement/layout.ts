import { checkAxisNames } from "../data-parallel.ts";
import { expectValue, formatValue, OptionError } from "../errors.ts";
import type { Coordinate } from "../mesh.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { type Layout, type Placement, resolvePlacement } from "./placement.ts";
import { joinSpans, type Span } from "./span.ts";
import { WeakCache } from "../weak-cache.ts";
import { MAX_CACHED_SHARDINGS, markVerified, resolveShards } from "./verify.ts";

export const layoutOptions = defineOptions("layoutOf", {
  /** Lengths of the mesh axes. */
  mesh: option.meshShape(),
  /** Mesh axes along which the sequence is sharded, outermost first. If empty, every rank holds the whole sequence. */
  axes: option.array(option.string()),
  /** Placement of the sequence. Default "contiguous". */
  placement: option.placement({ default: "contiguous" }),
  /** Length of the whole sequence. */
  length: option.integer({ min: 0 }),
});
/** Options of `layoutOf`. */
export type LayoutOptions = OptionsOf<typeof layoutOptions>;

/**
 * Layouts by placement, axes and length. Equal calls share a layout, because values that are derived from it, such as a
 * backend's plan, are cached by its identity.
 */
const layoutCache = new WeakCache<Placement, string, Layout>(MAX_CACHED_SHARDINGS);

/**
 * Returns the layout of a sequence that is sharded along some axes of a mesh. Shards are numbered row-major over
 * `axes`.
 *
 * @example
 * ```ts
 * import { layoutOf } from "@mosaic/core";
 * const layout = layoutOf({ mesh: { dp: 2, sp: 4 }, axes: ["sp"], length: 10 });
 * layout.spans({ dp: 1, sp: 1 }); // => [{ start: 3, length: 3, step: 1 }]
 * layout.spans({}); // => [{ start: 0, length: 10, step: 1 }]
 * ```
 * @throws OptionError for an axis that the mesh lacks or that is listed twice, for the name of a mesh axis that `init`
 * would reject, for a mesh axis length that is not an integer ≥ 1, for a length that is not an integer ≥ 0, and, from
 * `spans`, for a coordinate outside the mesh; ShapeError for a placement that violates its contract.
 */
export function layoutOf(options: LayoutOptions): Layout {
  const { mesh, axes, placement: requestedPlacement, length } = layoutOptions.parse(options);
  checkAxes(mesh, axes);
  const placement = resolvePlacement(requestedPlacement);
  const key = JSON.stringify([length, axes.map((axis) => [axis, mesh[axis]])]);
  return layoutCache.getOrCreate(placement, key, () =>
    createLayout(placement, { mesh: copyAxes(mesh, axes), axes: Object.freeze([...axes]), length }),
  );
}

function copyAxes(mesh: Coordinate, axes: readonly string[]): Coordinate {
  return Object.fromEntries(axes.map((axis) => [axis, mesh[axis]!]));
}

/** Creates a layout. It and its spans are immutable, because calls share them. */
function createLayout(
  placement: Placement,
  { mesh, axes, length }: { readonly mesh: Coordinate; readonly axes: readonly string[]; readonly length: number },
): Layout {
  const count = axes.reduce((product, axis) => product * mesh[axis]!, 1);
  // Spans are cached by a number in mixed radix: each digit is the coordinate along an axis plus 1, or 0 for all shards
  // along it. Backends look up millions of them.
  const radices = axes.map((axis) => mesh[axis]! + 1);
  const cache = new Map<number, readonly Span[]>();
  const shards = resolveShards(placement, count, length);
  const layout: Layout = Object.freeze<Layout>({
    length,
    axes,
    spans(at) {
      expectValue("Layout.spans", typeof at === "object" && at !== null, "a coordinate, such as { sp: 0 }", at);
      let key = 0;
      for (let i = 0; i < axes.length; i++) {
        const index = at[axes[i]!];
        if (index !== undefined && !(typeof index === "number" && index >= 0 && index < radices[i]! - 1))
          throw outsideMeshError(axes[i]!, index, radices[i]! - 1);
        key = key * radices[i]! + (index ?? -1) + 1;
      }
      let spans = cache.get(key);
      if (!spans) {
        const joinedSpans = joinSpans(shardIndices(at, axes, mesh).flatMap((index) => shards[index]!));
        spans = Object.freeze(joinedSpans.map((span) => Object.freeze({ ...span })));
        cache.set(key, spans);
      }
      return spans;
    },
  });
  return markVerified(layout, mesh, placement.name);
}

/** Throws an OptionError unless each axis is one of the mesh and is listed once. */
export function checkMeshAxes(where: string, mesh: Coordinate, axes: readonly string[]): void {
  for (const [i, axis] of axes.entries()) {
    const isDuplicate = axes.indexOf(axis) < i;
    if (Object.hasOwn(mesh, axis) && !isDuplicate) continue;
    throw new OptionError({
      where,
      expected: `axes of the mesh, ${Object.keys(mesh).join(", ")}`,
      received: `${isDuplicate ? "duplicate " : ""}"${axis}"`,
      remedy: isDuplicate ? "list each axis once" : "add the axis to init({ mesh })",
    });
  }
}

function checkAxes(mesh: Coordinate, axes: readonly string[]): void {
  checkAxisNames("layoutOf: mesh", mesh);
  checkMeshAxes("layoutOf", mesh, axes);
  for (const axis of Object.keys(mesh)) {
    if (Number.isSafeInteger(mesh[axis]) && mesh[axis]! >= 1) continue;
    const received = String(mesh[axis]);
    throw new OptionError({ where: `layoutOf: mesh axis "${axis}"`, expected: "an integer ≥ 1", received });
  }
}

/** Creates the error for a coordinate outside the mesh, whose key could be that of another coordinate. */
function outsideMeshError(axis: string, received: unknown, size: number): OptionError {
  return new OptionError({
    where: "Layout.spans",
    expected: `an integer from 0 to ${size - 1} for axis "${axis}"`,
    received: formatValue(received),
  });
}

/**
 * Returns the row-major indices of the shards at a coordinate. An axis missing from it means all shards along this
 * axis.
 */
function shardIndices(at: Coordinate, axes: readonly string[], mesh: Coordinate): number[] {
  let shards = [0];
  for (const axis of axes) {
    const index = at[axis];
    if (index !== undefined && !Number.isSafeInteger(index)) throw outsideMeshError(axis, index, mesh[axis]!);
    const values = index === undefined ? Array.from({ length: mesh[axis]! }, (_, i) => i) : [index];
    shards = shards.flatMap((shard) => values.map((value) => shard * mesh[axis]! + value));
  }
  return shards;
}
