import type { Coordinate, DeviceMesh } from "./mesh.ts";

// Data parallelism: ranks along the mesh axis "dp" hold different samples. Ranks along every other axis share them.

const DATA_PARALLEL_AXIS = "dp";

/** Returns whether ranks along a mesh axis hold different samples. Along every other axis, they share a sequence. */
export function isDataParallelAxis(axis: string): boolean {
  return axis === DATA_PARALLEL_AXIS;
}

/** Returns the number of ranks along the data-parallel axis, that is, of shares of a batch. */
export function dataParallelSize(mesh: { readonly shape: Coordinate }): number {
  return mesh.shape[DATA_PARALLEL_AXIS] ?? 1;
}

/** Returns this rank's coordinate along the data-parallel axis, that is, the index of its share of a batch. */
export function dataParallelRank(mesh: Pick<DeviceMesh, "coordinate">): number {
  return mesh.coordinate[DATA_PARALLEL_AXIS] ?? 0;
}

/**
 * Returns how gradients are reduced along a mesh axis. Along the data-parallel axis a rank's loss is the mean over its
 * own samples, so gradients are averaged. Along sequence axes it is the shard's part of a sum, so they are summed.
 */
export function gradientReduceOp(axis: string): "mean" | "sum" {
  return isDataParallelAxis(axis) ? "mean" : "sum";
}
