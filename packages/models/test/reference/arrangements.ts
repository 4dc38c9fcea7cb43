import { flex } from "@mosaic/backend-flex";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { world } from "@mosaic/collectives-local";
import type { AttentionBackend, Context, PlacementName } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";

/** A mesh of ranks, and how they share the sequence. */
export interface Arrangement {
  readonly name: string;
  readonly mesh: Readonly<Record<string, number>>;
  readonly backend?: AttentionBackend;
  readonly placement?: PlacementName;
}

export const oneRank: Arrangement = { name: "one rank", mesh: {} };

export const arrangements: readonly Arrangement[] = [
  { name: "ring of 2", mesh: { sp: 2 }, backend: ring(), placement: "zigzag" },
  { name: "ring of 4", mesh: { sp: 4 }, backend: ring() },
  { name: "mesh2d on 2", mesh: { sp: 2 }, backend: mesh2d() },
  { name: "mesh2d on 2×2", mesh: { sp: 4 }, backend: mesh2d({ shape: [2, 2] }) },
  {
    name: "ulysses × ring",
    mesh: { seq: 2, head: 2 },
    backend: ulysses({ axis: "head", inner: ring({ axis: "seq" }) }),
  },
  { name: "flex on 2", mesh: { sp: 2 }, backend: flex(), placement: "striped" },
  { name: "flex on 4", mesh: { sp: 4 }, backend: flex() },
];

/**
 * Runs `body` on every rank of an arrangement, and returns the results. The short timeout turns a missing message into
 * an error.
 */
export async function onRanks<T>(
  { mesh }: Arrangement,
  body: (ctx: Context) => Promise<T>,
  { timeout = 20 }: { readonly timeout?: number } = {},
): Promise<T[]> {
  const ranks = Object.values(mesh).reduce((product, length) => product * length, 1);
  const contexts = await world(ranks, { mesh, device: (rank) => cpu({ threads: 1, index: rank }), timeout });
  try {
    return await Promise.all(contexts.map(body));
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}

/** Returns the options of `loadModel` for an arrangement. */
export function loadOptions({ backend, placement = "contiguous" }: Arrangement) {
  return { placement, ...(backend && { backend }) };
}
