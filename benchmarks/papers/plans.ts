import { masks } from "@mosaic/core";
import { plan, type RankedStrategy } from "@mosaic/strategies/plan";
import { type Cluster, createProfile, type Timing, simulateTiming } from "./clusters.ts";
import type { Table } from "./table.ts";
import { type Problem, recordProblem, ringStrategy, countVolumes, type MeshStrategy } from "./volumes.ts";

/** Problem, cluster and strategies to compare. */
export interface Comparison {
  readonly id: string;
  readonly title: string;
  readonly problem: Problem;
  readonly cluster: Cluster;
  readonly ranks: number;
  /** Tiles of the paper. */
  readonly publishedPlans: readonly MeshStrategy[];
}

/**
 * Strategies whose estimate is at most this multiple of the best one are simulated on all ranks. Of the planner's whole
 * ranking, only the first `maxSimulatedPlans` are considered.
 */
const maxEstimateRatio = 1.3;
const maxSimulatedPlans = 3;

/**
 * Compares the ring, the paper's strategies, the strongest strategy in common use (ulysses × ring, "USP", with the
 * numbers of ranks and the order that suit it best) and the best of all strategies of the planner. Each of them is
 * simulated on all ranks.
 */
export function compare(comparison: Comparison): Table {
  const { problem, cluster, ranks, publishedPlans } = comparison;
  const profile = createProfile(cluster);
  const { ranksPerNode } = profile;
  const clusterSize = { nodes: ranks / ranksPerNode, gpusPerNode: ranksPerNode };
  const { ranking } = plan({ ...problem, ...clusterSize, mask: masks.causal(), profile, simulate: 1 });
  const timeStrategy = (kind: string, meshStrategy: MeshStrategy): TimedStrategy => {
    const record = recordProblem(meshStrategy, problem);
    const { both, betweenNodes: interNodeBytes } = countVolumes(record, ranksPerNode);
    const maxPeakBytes = Math.max(...record.ranks.map(({ peakBytes }) => peakBytes));
    return {
      kind,
      ...meshStrategy,
      ...simulateTiming(record, profile),
      sentBytes: both.bytes,
      interNodeBytes: interNodeBytes.bytes,
      peakBytes: maxPeakBytes,
    };
  };
  const selectFastest = (kind: string, rankedStrategies: readonly RankedStrategy[]): TimedStrategy =>
    rankedStrategies
      .filter(({ seconds }) => seconds <= maxEstimateRatio * rankedStrategies[0]!.seconds)
      .map(({ name, mesh, strategy }) => timeStrategy(kind, { name, mesh, backend: strategy }))
      .toSorted((first, second) => first.seconds - second.seconds)[0]!;
  const ring = timeStrategy("ring attention", ringStrategy(ranks));
  const combinedPlans = ranking.filter(({ name }) => /^ulysses \d+( × ring \d+)?$/.test(name));
  const baseline = selectFastest("fastest ulysses × ring", combinedPlans);
  const bestStrategy = selectFastest("our best", ranking.slice(0, maxSimulatedPlans));
  const rows = [
    ring,
    ...publishedPlans.map((publishedPlan) => timeStrategy("the paper's", publishedPlan)),
    baseline,
    bestStrategy,
  ];
  return createTable(
    comparison,
    rows.map((row) => createRow(row, ring, baseline)),
  );
}

interface TimedStrategy extends MeshStrategy, Timing {
  readonly kind: string;
  readonly sentBytes: number;
  readonly interNodeBytes: number;
  readonly peakBytes: number;
}

function createRow(
  { kind, name, mesh, ...row }: TimedStrategy,
  ring: TimedStrategy,
  baseline: TimedStrategy,
): Table["rows"][number] {
  return {
    kind,
    way: name,
    mesh: Object.entries(mesh)
      .map(([axis, length]) => `${axis} ${length}`)
      .join(" · "),
    seconds: row.seconds,
    overRing: ring.seconds / row.seconds,
    overBaseline: baseline.seconds / row.seconds,
    waits: row.waitShare,
    sent: row.sentBytes / 1e9,
    betweenNodes: row.interNodeBytes / 1e9,
    peak: row.peakBytes / 1e9,
  };
}

function createTable({ id, title, problem, cluster: { topology, bandwidth } }: Comparison, rows: Table["rows"]): Table {
  const { numHeads, numKvHeads = numHeads, headDim, tokens } = problem;
  const clusterName = `${topology.name}, ${(bandwidth / 1e9).toFixed(1)} GB/s`;
  return {
    id,
    title: `${title}: ${numHeads} heads, ${numKvHeads} KV heads of ${headDim}, ${tokens} tokens; ${clusterName}`,
    columns: [
      { key: "kind", head: "" },
      { key: "way", head: "way" },
      { key: "mesh", head: "mesh, outer · inner" },
      { key: "seconds", head: "seconds per layer", format: 3 },
      { key: "overRing", head: "speedup over ring", format: "times" },
      { key: "overBaseline", head: "speedup over the fastest baseline", format: "times" },
      { key: "waits", head: "waits", format: "percent" },
      { key: "sent", head: "GB sent per rank", format: 2 },
      { key: "betweenNodes", head: "between nodes", format: 2 },
      { key: "peak", head: "peak GB", format: 2 },
    ],
    rows,
  };
}
