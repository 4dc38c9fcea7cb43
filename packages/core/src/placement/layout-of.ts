import { OptionError } from "../errors.ts";
import type { Coordinate } from "../mesh.ts";
import { checkOptionNames } from "../options.ts";
import type { Layout } from "./layout.ts";
import { contiguous, type Placement } from "./placement.ts";
import { joinSpans, type Span } from "./span.ts";
import { resolveShards, trustLayout } from "./verify.ts";

/** What `layoutOf` takes. */
export interface LayoutOptions {
  /** Lengths of the mesh's axes. */
  readonly mesh: Coordinate;
  /** Axes over which the sequence is cut, outermost first; none: every rank holds it all. */
  readonly axes: readonly string[];
  /** Default: contiguous. */
  readonly placement?: Placement;
  /** Length of the whole sequence. */
  readonly length: number;
}

/**
 * Where the rows of a sequence lie that is cut over some axes of a mesh. Shards are numbered row-major over `axes`.
 *
 * @example
 * ```ts
 * import { layoutOf } from "@mosaic/core";
 * const layout = layoutOf({ mesh: { dp: 2, sp: 4 }, axes: ["sp"], length: 10 });
 * layout.spans({ dp: 1, sp: 1 }); // => [{ start: 3, length: 3, step: 1 }]
 * layout.spans({}); // => [{ start: 0, length: 10, step: 1 }]
 * ```
 * @throws OptionError for an axis that the mesh lacks or that is named twice, for an axis or a length that is no whole number
 * (≥ 1, ≥ 0), and, from `spans`, for a coordinate outside the mesh; ShapeError for a placement that breaks its guarantees.
 */
export function layoutOf(options: LayoutOptions): Layout {
  checkOptions(options);
  const { mesh, axes, placement = contiguous(), length } = options;
  const count = axes.reduce((product, axis) => product * mesh[axis]!, 1);
  // By number: one more than the place along each axis, 0 for all of them. Backends ask for millions.
  const radix = axes.map((axis) => mesh[axis]! + 1);
  const known = new Map<number, readonly Span[]>();
  const shards = resolveShards(placement, count, length);
  return trustLayout({
    length,
    axes,
    spans(at) {
      let number = 0;
      for (let i = 0; i < axes.length; i++) {
        const own = at[axes[i]!];
        if (own !== undefined && !(own >= 0 && own < radix[i]! - 1)) throw outsideMesh(axes[i]!, own, radix[i]! - 1);
        number = number * radix[i]! + (own ?? -1) + 1;
      }
      let spans = known.get(number);
      if (!spans) {
        spans = joinSpans(shardsAt(at, axes, mesh).flatMap((index) => shards[index]!));
        known.set(number, spans);
      }
      return spans;
    },
  });
}

function checkOptions({ mesh, axes, length, ...rest }: LayoutOptions): void {
  checkOptionNames("layoutOf", rest, ["placement"] satisfies (keyof LayoutOptions)[]);
  for (const [i, axis] of axes.entries()) {
    const twice = axes.indexOf(axis) < i;
    if (Object.hasOwn(mesh, axis) && !twice) continue;
    throw new OptionError({
      where: "layoutOf",
      expected: `axes of the mesh, ${Object.keys(mesh).join(", ")}`,
      received: `"${axis}"${twice ? " twice" : ""}`,
      remedy: twice ? "name each axis once" : "name the axis in init({ mesh })",
    });
  }
  for (const axis of axes) {
    if (Number.isSafeInteger(mesh[axis]) && mesh[axis]! >= 1) continue;
    const received = String(mesh[axis]);
    throw new OptionError({ where: `layoutOf: mesh axis "${axis}"`, expected: "a whole number ≥ 1", received });
  }
  if (Number.isSafeInteger(length) && length >= 0) return;
  throw new OptionError({ where: "layoutOf: length", expected: "a whole number ≥ 0", received: String(length) });
}

/** By number a coordinate outside the mesh would be taken for another one. */
function outsideMesh(axis: string, received: number, size: number): OptionError {
  return new OptionError({
    where: "Layout.spans",
    expected: `${axis}, a whole number from 0 to ${size - 1}`,
    received: String(received),
  });
}

/** Numbers of the shards at a coordinate, row-major; an axis that it lacks runs over all its values. */
function shardsAt(at: Coordinate, axes: readonly string[], mesh: Coordinate): number[] {
  let shards = [0];
  for (const axis of axes) {
    const own = at[axis];
    if (own !== undefined && !Number.isSafeInteger(own)) throw outsideMesh(axis, own, mesh[axis]!);
    const values = own === undefined ? Array.from({ length: mesh[axis]! }, (_, i) => i) : [own];
    shards = shards.flatMap((shard) => values.map((value) => shard * mesh[axis]! + value));
  }
  return shards;
}
