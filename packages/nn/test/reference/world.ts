import { world } from "@mosaic/collectives-local";
import type { Context, Coordinate } from "@mosaic/core";
import { ring } from "@mosaic/backend-ring";
import { cpu } from "@mosaic/kernels-cpu";

/** Runs `body` on every rank of a new world, all in this thread, and closes it. */
export async function onMesh<T>(mesh: Coordinate, body: (ctx: Context) => Promise<T> | T, seed = 3): Promise<T[]> {
  const size = Object.values(mesh).reduce((product, length) => product * length, 1);
  const contexts = await world(size, { device: () => cpu({ threads: 1 }), mesh, backends: [ring()], seed });
  try {
    return await Promise.all(contexts.map(async (ctx) => await body(ctx)));
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}

/** A rank's share of a batch: its index, and the number of shares. */
export interface BatchShare {
  readonly index: number;
  readonly count: number;
}

/** Returns a rank's share of a batch, whose rows are divided along "dp", or along "dp_replicate" and "dp_shard". */
export function getBatchShare({ mesh }: Pick<Context, "mesh">): BatchShare {
  let [index, count] = [0, 1];
  for (const axis of mesh.axes.filter((each) => each.startsWith("dp"))) {
    index = index * mesh.shape[axis]! + mesh.coordinate[axis]!;
    count *= mesh.shape[axis]!;
  }
  return { index, count };
}

/** Runs `body` on one rank. */
export async function onOneRank<T>(body: (ctx: Context) => Promise<T> | T, seed = 3): Promise<T> {
  return (await onMesh({ sp: 1 }, body, seed))[0]!;
}
