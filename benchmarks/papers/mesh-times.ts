import type { AttentionRecord } from "@mosaic/planner";
import { recordProblem, ringStrategy, tileStrategy } from "./volumes.ts";
import { bytesPerMegaflop, createProfile, type Timing, simulateTiming, type Topology } from "./clusters.ts";
import { meshAttention } from "./published.ts";
import type { Table } from "./table.ts";

/** To our knowledge, GPU, heads and topology are not stated. Multi-head attention of this size is assumed. */
const numHeads = { numHeads: 32, headDim: 128 } as const;

/**
 * Topologies with one port per GPU, or one shared by two, four or all eight GPUs of a node. In the first one all links
 * are equal.
 */
export const topologies: readonly Topology[] = [
  { name: "all links equal", ranksPerNode: 1, ports: 1, intraNodeSpeedup: 1 },
  { name: "nodes of 8 GPUs, 8 ports", ranksPerNode: 8, ports: 8, intraNodeSpeedup: 10 },
  { name: "nodes of 8 GPUs, 4 ports", ranksPerNode: 8, ports: 4, intraNodeSpeedup: 10 },
  { name: "nodes of 8 GPUs, 2 ports", ranksPerNode: 8, ports: 2, intraNodeSpeedup: 10 },
  { name: "nodes of 8 GPUs, 1 port", ranksPerNode: 8, ports: 1, intraNodeSpeedup: 10 },
];

export interface MeshTimeSettings {
  /** The ring to which the network is fitted, with the share of its time that it waits. */
  readonly fittedProblem: { readonly ranks: number; readonly tokens: number; readonly share: number };
  /** Number of ranks for which speedups are predicted. */
  readonly ranks: number;
  readonly tiles: readonly (readonly [number, number])[];
  /** Lengths at which the closest topology is evaluated, with the first tile. */
  readonly tokens: readonly number[];
  readonly closestTopology: string;
}

export const meshTimeSettings: MeshTimeSettings = {
  fittedProblem: meshAttention.ringWaits,
  ranks: meshAttention.ranks,
  tiles: [
    [8, 32],
    [16, 16],
  ],
  tokens: [2 ** 18, 2 ** 19, 2 ** 21, 2 ** 22],
  closestTopology: "nodes of 8 GPUs, 4 ports",
};

/** Returns the bandwidth per port at which the ring waits for the stated share of its time. */
export function fitBandwidth(ring: AttentionRecord, topology: Topology, statedWaitShare: number): number {
  let bandwidth = 10e9;
  // Where waiting dominates, time is proportional to 1 / bandwidth. Each iteration reduces the error about tenfold.
  for (let step = 0; step < 8; step++) {
    const { seconds, waitSeconds, waitShare } = simulateTiming(
      ring,
      createProfile({ gpu: "h100", topology, bandwidth }),
    );
    if (Math.abs(waitShare - statedWaitShare) < 2e-4) break;
    bandwidth *= (seconds * (1 - statedWaitShare)) / (seconds - waitSeconds);
  }
  return bandwidth;
}

/** Fitted bandwidth per port, by name of the topology. */
export type Bandwidths = ReadonlyMap<string, number>;

/** Fits the bandwidth of each topology to one stated number, and predicts the speedups. */
export function fitMeshTimes(sizes: MeshTimeSettings): {
  readonly tables: readonly Table[];
  readonly bandwidthByTopology: Bandwidths;
} {
  const { fittedProblem, ranks, tiles, closestTopology } = sizes;
  const ring = recordProblem(ringStrategy(fittedProblem.ranks), { ...numHeads, tokens: fittedProblem.tokens });
  const bandwidthFor = memoizeByNodeSize((topology) => fitBandwidth(ring, topology, fittedProblem.share));
  const bandwidthByTopology = new Map(topologies.map((topology) => [topology.name, bandwidthFor(topology)]));
  const comparisonOptions = { ranks, bandwidthByTopology };
  const topologySpeedups = speedups(comparisonOptions, { tokens: fittedProblem.tokens, tiles, topologies });
  const closestOptions = {
    tiles: tiles.slice(0, 1),
    topologies: topologies.filter(({ name }) => name === closestTopology),
  };
  const lengthSpeedups = sizes.tokens.flatMap((tokens) => speedups(comparisonOptions, { tokens, ...closestOptions }));
  const tables = [
    fitTable(sizes, bandwidthByTopology),
    speedupTable("mesh.speedup", ranks, topologySpeedups),
    speedupTable("mesh.lengths", ranks, lengthSpeedups),
  ];
  return { tables, bandwidthByTopology };
}

interface FittedNetworks {
  readonly ranks: number;
  readonly bandwidthByTopology: Bandwidths;
}

interface SpeedupQuery {
  readonly tokens: number;
  readonly tiles: MeshTimeSettings["tiles"];
  readonly topologies: readonly Topology[];
}

function speedups(
  { ranks, bandwidthByTopology }: FittedNetworks,
  { tokens, tiles, topologies }: SpeedupQuery,
): Table["rows"] {
  const problem = { ...numHeads, tokens };
  const createTopologyProfile = (topology: Topology) =>
    createProfile({ gpu: "h100", topology, bandwidth: bandwidthByTopology.get(topology.name)! });
  const record = recordProblem(ringStrategy(ranks), problem);
  const simulateRing = memoizeByNodeSize((topology) => simulateTiming(record, createTopologyProfile(topology)));
  return tiles.flatMap((shape) => {
    const mesh = recordProblem(tileStrategy(shape), problem);
    return topologies.map((topology) => {
      const times = { ring: simulateRing(topology), mesh: simulateTiming(mesh, createTopologyProfile(topology)) };
      return { tokens, tile: shape.join(" × "), wiring: topology.name, ...compareTimings(times) };
    });
  });
}

/**
 * Caches results of a ring by the ranks per node. A ring crosses the boundary of a node once in each direction, so its
 * result is the same for any number of ports.
 */
function memoizeByNodeSize<T>(compute: (topology: Topology) => T): (topology: Topology) => T {
  const cachedResults = new Map<number, T>();
  return (topology) => {
    const { ranksPerNode } = topology;
    if (!cachedResults.has(ranksPerNode)) cachedResults.set(ranksPerNode, compute(topology));
    return cachedResults.get(ranksPerNode)!;
  };
}

function compareTimings({ ring, mesh }: { readonly ring: Timing; readonly mesh: Timing }): Record<string, number> {
  return {
    speedup: ring.seconds / mesh.seconds,
    ringWaits: ring.waitShare,
    meshWaits: mesh.waitShare,
    lessWaiting: 1 - mesh.waitShare / ring.waitShare,
  };
}

function fitTable(
  { fittedProblem: { share, ranks, tokens } }: MeshTimeSettings,
  bandwidthByTopology: Bandwidths,
): Table {
  return {
    id: "mesh.fit",
    title: `Network models in which a ring of ${ranks} ranks waits ${(share * 100).toFixed(1)} % of the time, ${tokens} tokens`,
    columns: [
      { key: "wiring", head: "topology" },
      { key: "bandwidth", head: "GB/s per port", format: 2 },
      { key: "bytesPerMegaflop", head: "bytes per MFLOP", format: 2 },
    ],
    rows: topologies.map((topology) => {
      const bandwidth = bandwidthByTopology.get(topology.name)!;
      const profile = createProfile({ gpu: "h100", topology, bandwidth });
      return {
        wiring: topology.name,
        bandwidth: bandwidth / 1e9,
        bytesPerMegaflop: bytesPerMegaflop(profile, numHeads.headDim),
      };
    }),
  };
}

function speedupTable(id: string, ranks: number, rows: Table["rows"]): Table {
  const { speedup, waitReduction } = meshAttention;
  const publishedSummary = `${speedup.average} on average, at most ${speedup.maximum}, ${waitReduction * 100} % less waiting`;
  const titleSuffix = id === "mesh.lengths" ? "by length" : "by topology";
  return {
    id,
    title: `Speedup of tiles over the ring, ${ranks} ranks, ${titleSuffix} (published: ${publishedSummary})`,
    columns: [
      { key: "tokens", head: "tokens", format: "integer" },
      { key: "tile", head: "tile" },
      { key: "wiring", head: "topology" },
      { key: "speedup", head: "speedup", format: "times" },
      { key: "ringWaits", head: "ring waits", format: "percent" },
      { key: "meshWaits", head: "mesh waits", format: "percent" },
      { key: "lessWaiting", head: "less waiting", format: "percent" },
    ],
    rows,
  };
}
