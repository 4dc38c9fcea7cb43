import { world } from "@mosaic/collectives-local";
import { cpu } from "@mosaic/kernels-cpu";
import { computeDigest } from "./reductions.ts";

/** Resolves to the digest of all reductions over shared memory, which must be equal on every rank. */
export async function digestOverSharedMemory(size: number): Promise<string> {
  const contexts = await world(size, { device: () => cpu({ threads: 1 }) });
  const digests = new Set(await Promise.all(contexts.map((ctx) => computeDigest(ctx.world))));
  await Promise.all(contexts.map((ctx) => ctx.close()));
  if (digests.size !== 1) throw new Error(`expected one result on all ranks, received ${digests.size}`);
  return [...digests][0]!;
}
