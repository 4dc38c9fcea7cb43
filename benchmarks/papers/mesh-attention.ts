import type { Cluster } from "./clusters.ts";
import { fitMeshTimes, meshTimeSettings, topologies } from "./mesh-times.ts";
import { compare, type Comparison } from "./plans.ts";
import { meshAttention } from "./published.ts";
import type { Table } from "./table.ts";
import {
  computeSaving,
  formulas,
  type ChunksPerPass,
  recordProblem,
  ringStrategy,
  tileStrategy,
  type Volumes,
  countVolumes,
  type MeshStrategy,
} from "./volumes.ts";

/** Settings of the volume counts: number of ranks, tiles, and numbers of query heads per KV head. */
interface MeshVolumeSettings {
  readonly ranks: number;
  readonly tiles: readonly (readonly [number, number])[];
  readonly groups: readonly number[];
}

const meshVolumeSettings: MeshVolumeSettings = {
  ranks: meshAttention.ranks,
  tiles: [
    [16, 16],
    [8, 32],
    [4, 64],
  ],
  groups: [1, 2, 4, 8],
};

/** Reductions of volume of one tile relative to the ring, each as a share. */
interface Reduction {
  readonly tile: string;
  /** Query heads per KV head. */
  readonly group: string;
  readonly forward: number;
  readonly both: number;
  readonly bothBytes: number;
  readonly forwardBytes: number;
  readonly formula: number;
}

/** Compares volumes of tiles with those of the ring, from records and from the formulas. */
export function meshVolumeTables(sizes: MeshVolumeSettings): readonly Table[] {
  const { ranks, tiles, groups } = sizes;
  const reductions = groups.flatMap((group) => {
    const ring = countMeshVolumes(ringStrategy(ranks), sizes, group);
    return tiles.map(([a, b]): Reduction => {
      const mesh = countMeshVolumes(tileStrategy([a, b]), sizes, group);
      return {
        tile: [a, b].join(" × "),
        group: String(group),
        forward: computeSaving(mesh.forward.chunks, ring.forward.chunks),
        both: computeSaving(mesh.both.chunks, ring.both.chunks),
        forwardBytes: computeSaving(mesh.forward.bytes, ring.forward.bytes),
        bothBytes: computeSaving(mesh.both.bytes, ring.both.bytes),
        formula: computeSaving(total(formulas.tile([a, b], group)), total(formulas.ring(ranks, group))),
      };
    });
  });
  return [
    reductionTable(ranks, reductions),
    publishedComparisonTable(ranks, [...reductions, ...tiles.map((shape) => meanReduction(reductions, shape))]),
  ];
}

/** Averages one tile over all groups, which may correspond to the paper's average over models. */
function meanReduction(reductions: readonly Reduction[], shape: readonly [number, number]): Reduction {
  const rows = reductions.filter((row) => row.tile === shape.join(" × "));
  const mean = (key: "forward" | "both" | "bothBytes" | "forwardBytes" | "formula") =>
    rows.reduce((sum, row) => sum + row[key], 0) / rows.length;
  return {
    tile: shape.join(" × "),
    group: `mean of ${rows.map(({ group }) => group).join(", ")}`,
    forward: mean("forward"),
    both: mean("both"),
    forwardBytes: mean("forwardBytes"),
    bothBytes: mean("bothBytes"),
    formula: mean("formula"),
  };
}

function countMeshVolumes(strategy: MeshStrategy, { ranks }: MeshVolumeSettings, group: number): Volumes {
  // Zigzag cuts the sequence into 2·ranks pieces. Volumes in chunks depend on neither the length nor the number of
  // heads.
  const problem = { tokens: 32 * ranks, numHeads: 8, numKvHeads: 8 / group, headDim: 128 };
  return countVolumes(recordProblem(strategy, problem), 8);
}

const total = ({ forward, backward }: ChunksPerPass): number => forward + backward;

function reductionTable(ranks: number, rows: readonly Reduction[]): Table {
  return {
    id: "mesh.volume",
    title: `Reduction of communication volume relative to ring attention, ${ranks} ranks, causal, zigzag`,
    columns: [
      { key: "tile", head: "tile (queries × keys)" },
      { key: "group", head: "query heads per KV head" },
      { key: "forward", head: "forward", format: "percent" },
      { key: "both", head: "forward and backward", format: "percent" },
      { key: "formula", head: "by formula", format: "percent" },
      { key: "forwardBytes", head: "forward, bytes", format: "percent" },
      { key: "bothBytes", head: "both, bytes", format: "percent" },
    ],
    rows: rows.map((row) => ({ ...row })),
  };
}

/** Lists the settings close to the stated numbers, as candidates for the tile and model of the paper. */
function publishedComparisonTable(ranks: number, rows: readonly Reduction[]): Table {
  const { average, maximum } = meshAttention.volumeReduction;
  const measures = {
    forward: "forward",
    both: "both",
    forwardBytes: "forward, bytes",
    bothBytes: "both, bytes",
  } as const;
  const findMatchingRows = (statedReduction: number, name: string) =>
    rows.flatMap((row) =>
      (Object.keys(measures) as (keyof typeof measures)[])
        .filter((measure) => Math.abs(row[measure] - statedReduction) <= 0.005)
        .map((measure) => {
          const { tile: shape, group } = row;
          return {
            stated: name,
            theirs: statedReduction,
            ours: row[measure],
            tile: shape,
            group,
            measure: measures[measure],
          };
        }),
    );
  return {
    id: "mesh.near",
    title: `Settings within half a percentage point of the published reductions of volume, ${ranks} ranks`,
    columns: [
      { key: "stated", head: "stated" },
      { key: "theirs", head: "theirs", format: "percent" },
      { key: "ours", head: "ours", format: "percent" },
      { key: "tile", head: "tile" },
      { key: "group", head: "query heads per KV head" },
      { key: "measure", head: "counted" },
    ],
    rows: [...findMatchingRows(maximum, "maximum"), ...findMatchingRows(average, "average")],
  };
}

/**
 * Multi-head and grouped-query attention of a usual size. The last has the eight of 64 heads that tensor parallelism
 * within a node leaves to a GPU.
 */
const sizes = [
  { numHeads: 32, numKvHeads: 32, headDim: 128 },
  { numHeads: 32, numKvHeads: 8, headDim: 128 },
  { numHeads: 8, numKvHeads: 8, headDim: 128 },
] as const;

/** Returns all tables of Mesh-Attention. */
export function meshAttentionTables(): readonly Table[] {
  const { tables, bandwidthByTopology } = fitMeshTimes(meshTimeSettings);
  const { tokens } = meshTimeSettings.fittedProblem;
  // Current clusters have one port per GPU. Four ports for eight GPUs give the times closest to the paper's.
  const clusters = topologies
    .filter(({ ports, ranksPerNode }) => ranksPerNode === 8 && ports >= 4)
    .map((topology): Cluster => ({ gpu: "h100", topology, bandwidth: bandwidthByTopology.get(topology.name)! }));
  const comparisons = clusters.flatMap((cluster) =>
    sizes.map((size): Comparison => {
      const comparisonOptions = { cluster, ranks: meshTimeSettings.ranks, publishedPlans: [tileStrategy([8, 32])] };
      return { id: "mesh.plans", title: "256 ranks", problem: { ...size, tokens }, ...comparisonOptions };
    }),
  );
  return [...meshVolumeTables(meshVolumeSettings), ...tables, ...comparisons.map(compare)];
}
