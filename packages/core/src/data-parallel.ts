import { expectValue } from "./errors.ts";
import type { Coordinate, DeviceMesh } from "./mesh.ts";

// Data parallelism: ranks along the mesh axis "dp" hold different samples. Ranks along every other axis share them.

/** Name of the data-parallel mesh axis. */
export const dataParallelAxis = "dp";

/** Returns whether ranks along a mesh axis hold different samples. Along every other axis, they share a sequence. */
export function isDataParallelAxis(axis: string): boolean {
  expectValue("isDataParallelAxis", typeof axis === "string", "the name of a mesh axis", axis);
  return axis === dataParallelAxis;
}

/** Returns the number of ranks along the data-parallel axis, that is, of shares of a batch. */
export function dataParallelSize(mesh: { readonly shape: Coordinate }): number {
  expectValue("dataParallelSize", typeof mesh?.shape === "object" && mesh.shape !== null, "a mesh", mesh);
  return mesh.shape[dataParallelAxis] ?? 1;
}

/** Returns this rank's coordinate along the data-parallel axis, that is, the index of its share of a batch. */
export function dataParallelRank(mesh: Pick<DeviceMesh, "coordinate">): number {
  const isMesh = typeof mesh?.coordinate === "object" && mesh.coordinate !== null;
  expectValue("dataParallelRank", isMesh, "a DeviceMesh", mesh);
  return mesh.coordinate[dataParallelAxis] ?? 0;
}

/**
 * Returns how gradients are reduced along a mesh axis. Along the data-parallel axis a rank's loss is the mean over its
 * own samples, so gradients are averaged. Along sequence axes it is the shard's part of a sum, so they are summed.
 */
export function gradientReduceOp(axis: string): "mean" | "sum" {
  expectValue("gradientReduceOp", typeof axis === "string", "the name of a mesh axis", axis);
  return isDataParallelAxis(axis) ? "mean" : "sum";
}
