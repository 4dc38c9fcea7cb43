import { flex } from "@mosaic/backend-flex";
import { mesh2d, type Mesh2DOptions } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import {
  type AttentionBackend,
  contiguous,
  type Coordinate,
  type Mask,
  masks,
  type Placement,
  striped,
  zigzag,
} from "@mosaic/core";
import type { RecordOptions } from "../src/index.ts";

/**
 * Sizes that are not divisible by numbers of ranks: 67 queries and keys, in two sequences, with two query heads for
 * each KV head.
 */
export const raggedSizes = { tokens: 67, numHeads: 4, numKvHeads: 2, headDim: 8, batch: 2 } as const;

export const someMasks: readonly Mask[] = [
  masks.full(),
  masks.causal(),
  masks.slidingWindow(9),
  masks.documents([10, 30, 27], "causal"),
];
export const placements: readonly Placement[] = [contiguous(), zigzag(), striped()];

/** Every mask with every placement. */
export const arrangements: readonly Pick<RecordOptions, "mask" | "placement">[] = someMasks.flatMap((mask) =>
  placements.map((placement) => ({ mask, placement })),
);

export type GridShape = readonly [rows: number, columns: number];

/** Returns every grid of at most `ranks` ranks. */
export function listGrids(ranks: number): GridShape[] {
  const lengths = Array.from({ length: ranks }, (_, i) => i + 1);
  return lengths.flatMap((rows) => lengths.filter((c) => rows * c <= ranks).map((c): GridShape => [rows, c]));
}

/** The schedules of mesh2d. */
export const schedules: readonly Pick<Mesh2DOptions, "schedule" | "channels">[] = [
  { schedule: "fused" },
  { schedule: "overlapped" },
  { schedule: "overlapped", channels: 2 },
];

export interface NestedBackend {
  readonly name: string;
  readonly backend: AttentionBackend;
  readonly mesh: Coordinate;
}

function nestedBackend(name: string, mesh: Coordinate, backend: AttentionBackend): NestedBackend {
  return { name, mesh, backend };
}

/** Nested backends, as the strategies build them. */
export const nestedBackends: readonly NestedBackend[] = [
  nestedBackend("ring in ring", { node: 2, gpu: 3 }, ring({ axis: "node", inner: ring({ axis: "gpu" }) })),
  nestedBackend("ring in ring in ring", { rack: 2, node: 2, gpu: 2 }, nestedRings("rack", "node", "gpu")),
  nestedBackend(
    "overlapped mesh2d in ring",
    { node: 2, gpu: 6 },
    mesh2dInRing({ shape: [3, 2], schedule: "overlapped" }),
  ),
  nestedBackend("fused mesh2d in ring", { node: 3, gpu: 4 }, mesh2dInRing({ shape: [2, 2], schedule: "fused" })),
  nestedBackend("ring in ulysses", { node: 3, gpu: 2 }, ulysses({ axis: "gpu", inner: ring({ axis: "node" }) })),
  nestedBackend("ring in ulysses, more ranks than heads", { node: 2, gpu: 5 }, ulyssesAround(ring({ axis: "node" }))),
  nestedBackend(
    "mesh2d in ulysses",
    { node: 4, gpu: 2 },
    ulyssesAround(mesh2d({ axis: "node", shape: [2, 2], schedule: "overlapped" })),
  ),
  nestedBackend("ring in ring in ulysses", { rack: 2, node: 2, gpu: 2 }, ulyssesAround(nestedRings("rack", "node"))),
  nestedBackend("ulysses in ring", { node: 3, gpu: 2 }, ring({ axis: "node", inner: ulysses({ axis: "gpu" }) })),
  nestedBackend("flex in flex", { node: 2, gpu: 3 }, flex({ axis: "node", stages: 2, inner: flex({ axis: "gpu" }) })),
  nestedBackend("flex in ring", { node: 2, gpu: 3 }, ring({ axis: "node", inner: flex({ axis: "gpu", stages: 0 }) })),
  nestedBackend("ring in flex", { node: 3, gpu: 2 }, flex({ axis: "node", stages: 2, inner: ring({ axis: "gpu" }) })),
  nestedBackend(
    "mesh2d in flex",
    { node: 2, gpu: 4 },
    flex({ axis: "node", inner: mesh2d({ axis: "gpu", shape: [2, 2] }) }),
  ),
  nestedBackend(
    "ulysses in flex",
    { node: 2, gpu: 2 },
    flex({ axis: "node", stages: 1, inner: ulysses({ axis: "gpu" }) }),
  ),
  nestedBackend("flex in ulysses", { node: 3, gpu: 2 }, ulyssesAround(flex({ axis: "node" }))),
  nestedBackend("ulysses in ulysses", { node: 2, gpu: 2 }, ulyssesAround(ulysses({ axis: "node" }))),
];

function nestedRings(...axes: readonly string[]): AttentionBackend {
  const [axis, ...innerAxes] = axes;
  return innerAxes.length > 0 ? ring({ axis: axis!, inner: nestedRings(...innerAxes) }) : ring({ axis: axis! });
}

function mesh2dInRing(options: Mesh2DOptions): AttentionBackend {
  return ring({ axis: "node", inner: mesh2d({ axis: "gpu", ...options }) });
}

function ulyssesAround(inner: AttentionBackend): AttentionBackend {
  return ulysses({ axis: "gpu", inner });
}
