import type { Context } from "../context.ts";
import { OptionError, ShapeError } from "../errors.ts";
import type { Coordinate } from "../mesh.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";

// What backends check before they post anything: an error on one rank must not leave others waiting for half a message.

/** That the mesh has `axis`. `made` is the backend's factory, for the remedy: "ring". Throws an OptionError. */
export function checkMeshAxis(
  { mesh }: Context,
  axis: string,
  { where, made }: { readonly where: string; readonly made: string },
): void {
  if (mesh.axes.includes(axis)) return;
  throw new OptionError({
    where,
    expected: `one of the mesh's axes ${mesh.axes.join(", ")}`,
    received: `"${axis}"`,
    remedy: `name the axis in init({ mesh }), or give ${made}({ axis }) the one you mean`,
  });
}

/** That what comes from `at` is this rank's own along `axis`. `name`: "keys". Throws an OptionError. */
export function checkOwnShard(
  { mesh }: Context,
  axis: string,
  { where, name, at }: { readonly where: string; readonly name: string; readonly at: Coordinate },
): void {
  const own = mesh.coordinate[axis];
  if (at[axis] === own) return;
  throw new OptionError({
    where,
    expected: `this rank's own ${name}, ${axis} = ${own}`,
    received: `${name} from ${JSON.stringify(at)}`,
    remedy: "another backend has gathered or moved them already: let only one use the axis",
  });
}

/** That x [B,H,S,D] has as many rows as its layout says. Throws a ShapeError. */
export function checkShardRows(
  x: Tensor,
  length: number,
  { where, name }: { readonly where: string; readonly name: string },
): void {
  if (x.rank === 4 && x.shape[2] === length) return;
  throw new ShapeError({
    where,
    expected: `${name} [B,H,${length},D], as their layout says`,
    received: formatShape(x.shape),
    remedy: "give the layout the placement and the length that the sequence was sharded with",
  });
}
