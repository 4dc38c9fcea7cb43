import { expectValue, OptionError } from "./errors.ts";
import type { Coordinate, DeviceMesh } from "./mesh.ts";

// Data parallelism: ranks along the data-parallel axes of the mesh hold different samples. Ranks along every other axis
// share them. The name of an axis determines which of the two it is, so that a mesh is complete as lengths by name.

/** Name of the data-parallel mesh axis, if there is only one. */
export const dataParallelAxis = "dp";

/** Names of several data-parallel axes begin with this, such as "dp_replicate" and "dp_shard". */
const DATA_PARALLEL_PREFIX = `${dataParallelAxis}_`;

/**
 * Returns whether ranks along a mesh axis hold different samples: "dp", and names that begin with "dp_". Along every
 * other axis, they share a sequence.
 *
 * @example
 * ```ts
 * import { isDataParallelAxis } from "@mosaic/core";
 * ["dp", "dp_shard", "sp", "dpx"].filter(isDataParallelAxis); // => ["dp", "dp_shard"]
 * ```
 * @throws OptionError unless `axis` is a string.
 */
export function isDataParallelAxis(axis: string): boolean {
  expectValue("isDataParallelAxis", typeof axis === "string", "the name of a mesh axis", axis);
  return axis === dataParallelAxis || axis.startsWith(DATA_PARALLEL_PREFIX);
}

/** Names that other libraries give to data-parallel axes, and names that begin like ours. */
const MISSPELT_NAME = /^(dp.*|(ddp|fsdp|hsdp|data|data[-_]?parallel|replicas?|replicate|batch)([-_\d].*)?)$/i;

/**
 * Throws an OptionError if a mesh has an axis whose name does not begin with a letter or an underscore, or is likely
 * meant to be that of a data-parallel axis, but is not. Ranks along the latter would silently share each sequence, and
 * gradients would be summed.
 *
 * @example
 * ```ts
 * import { checkAxisNames } from "@mosaic/core";
 * checkAxisNames("record: mesh", { data: 2, sp: 4 }); // throws record: mesh: expected data-parallel axes
 * ```
 */
export function checkAxisNames(where: string, shape: Coordinate): void {
  const isObject = typeof shape === "object" && shape !== null;
  expectValue(where, isObject, "axis lengths by name, such as { dp: 2, sp: 4 }", shape);
  // JavaScript orders integer-like keys such as "0" before all others, which would change the order of axes.
  const invalidNames = Object.keys(shape).filter((axis) => !/^[A-Za-z_]/.test(axis));
  if (invalidNames.length > 0) {
    throw new OptionError({
      where,
      expected: "axis names that begin with a letter or an underscore",
      received: invalidNames.map((axis) => JSON.stringify(axis)).join(", "),
      remedy: "rename the axis, such as sp0 instead of 0",
    });
  }
  const name = Object.keys(shape).find((axis) => MISSPELT_NAME.test(axis) && !isDataParallelAxis(axis));
  if (name === undefined) return;
  throw new OptionError({
    where,
    expected: 'data-parallel axes that are named "dp", or whose names begin with "dp_"',
    received: `"${name}"`,
    remedy: 'rename the axis to "dp"; if its ranks share each sequence, choose another name, such as "sp"',
  });
}

/** Throws an OptionError if a value is not the shape of a mesh. A mesh is not its shape. */
export function checkMeshShape(where: string, shape: Coordinate): void {
  const isShape = typeof shape === "object" && shape !== null && Object.values(shape).every(Number.isInteger);
  expectValue(where, isShape, "axis lengths by name, such as { dp: 2, sp: 4 } or ctx.mesh.shape", shape);
}

/**
 * Returns the data-parallel axes among those of the shape of a mesh, outermost first.
 *
 * @example
 * ```ts
 * import { dataParallelAxes } from "@mosaic/core";
 * dataParallelAxes({ dp_replicate: 2, dp_shard: 4, sp: 8 }); // => ["dp_replicate", "dp_shard"]
 * ```
 * @throws OptionError unless `shape` has axis lengths by name. A mesh is not its shape.
 */
export function dataParallelAxes(shape: Coordinate): string[] {
  checkMeshShape("dataParallelAxes", shape);
  return Object.keys(shape).filter(isDataParallelAxis);
}

/**
 * Returns the number of ranks along all data-parallel axes together, that is, of shares of a batch.
 *
 * @example
 * ```ts
 * import { dataParallelSize } from "@mosaic/core";
 * dataParallelSize({ shape: { dp_replicate: 2, dp_shard: 4, sp: 8 } }); // => 8
 * ```
 * @throws OptionError unless `mesh` is a mesh.
 */
export function dataParallelSize(mesh: { readonly shape: Coordinate }): number {
  expectValue("dataParallelSize", typeof mesh?.shape === "object" && mesh.shape !== null, "a mesh", mesh);
  return dataParallelAxes(mesh.shape).reduce((size, axis) => size * mesh.shape[axis]!, 1);
}

/**
 * Returns the index of this rank's share of a batch: its coordinate along the data-parallel axis, or its row-major
 * index over all of them.
 *
 * @example
 * ```ts
 * import { dataParallelRank } from "@mosaic/core";
 * const shape = { dp_replicate: 2, dp_shard: 4, sp: 8 };
 * dataParallelRank({ shape, coordinate: { dp_replicate: 1, dp_shard: 3, sp: 5 } }); // => 7
 * ```
 * @throws OptionError unless `mesh` is a mesh.
 */
export function dataParallelRank(mesh: Pick<DeviceMesh, "shape" | "coordinate">): number {
  const isObject = (value: unknown): boolean => typeof value === "object" && value !== null;
  const isMesh = isObject(mesh) && isObject(mesh.shape) && isObject(mesh.coordinate);
  expectValue("dataParallelRank", isMesh, "a DeviceMesh", mesh);
  const { shape, coordinate } = mesh;
  return dataParallelAxes(shape).reduce((rank, axis) => rank * shape[axis]! + coordinate[axis]!, 0);
}

/**
 * Returns how gradients are reduced along a mesh axis. Along data-parallel axes a rank's loss is the mean over its own
 * samples, so gradients are averaged. Along sequence axes it is the shard's part of a sum, so they are summed.
 *
 * @example
 * ```ts
 * import { gradientReduceOp } from "@mosaic/core";
 * ["dp", "sp"].map(gradientReduceOp); // => ["mean", "sum"]
 * ```
 * @throws OptionError unless `axis` is a string.
 */
export function gradientReduceOp(axis: string): "mean" | "sum" {
  expectValue("gradientReduceOp", typeof axis === "string", "the name of a mesh axis", axis);
  return isDataParallelAxis(axis) ? "mean" : "sum";
}
