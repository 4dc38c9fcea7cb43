import { masks } from "@mosaic/core";
import { plan, type RankedStrategy } from "@mosaic/strategies/plan";
import { type Cluster, createProfile, type Timing, simulateTiming } from "./clusters.ts";
import type { Table } from "./table.ts";
import { type Problem, recordProblem, ringStrategy, countVolumes, type MeshStrategy } from "./volumes.ts";

/** What is compared where. */
export interface Comparison {
  readonly id: string;
  readonly title: string;
  readonly problem: Problem;
  readonly cluster: Cluster;
  readonly ranks: number;
  /** The tiles that the paper has. */
  readonly publishedPlans: readonly MeshStrategy[];
}

/** Of the planner's estimates, what is not this much slower than the best is simulated whole, of all ways the first few. */
const close = 1.3;
const simulatedPlans = 3;

/**
 * The ring, the paper's own way, the strongest way in common use (ulysses × ring, "USP", over whatever numbers of ranks and in
 * whatever order suit it best) and the best of all strategies of the planner, every one of them simulated whole.
 */
export function compare(comparison: Comparison): Table {
  const { problem, cluster, ranks, publishedPlans } = comparison;
  const profile = createProfile(cluster);
  const { ranksPerNode } = profile;
  const size = { nodes: ranks / ranksPerNode, gpusPerNode: ranksPerNode };
  const { ranking } = plan({ ...problem, ...size, mask: masks.causal(), profile, simulate: 1 });
  const timed = (kind: string, way: MeshStrategy): TimedStrategy => {
    const record = recordProblem(way, problem);
    const { both, betweenNodes } = countVolumes(record, ranksPerNode);
    const peak = Math.max(...record.ranks.map(({ peakBytes }) => peakBytes));
    return {
      kind,
      ...way,
      ...simulateTiming(record, profile),
      sent: both.bytes,
      betweenNodes: betweenNodes.bytes,
      peak,
    };
  };
  const bestOf = (kind: string, from: readonly RankedStrategy[]): TimedStrategy =>
    from
      .filter(({ seconds }) => seconds <= close * from[0]!.seconds)
      .map(({ name, mesh, strategy }) => timed(kind, { name, mesh, backend: strategy }))
      .toSorted((one, other) => one.seconds - other.seconds)[0]!;
  const ring = timed("ring attention", ringStrategy(ranks));
  const usual = ranking.filter(({ name }) => /^ulysses \d+( × ring \d+)?$/.test(name));
  const baseline = bestOf("strongest ulysses × ring", usual);
  const best = bestOf("our best", ranking.slice(0, simulatedPlans));
  const rows = [ring, ...publishedPlans.map((way) => timed("the paper's", way)), baseline, best];
  return createTable(
    comparison,
    rows.map((row) => createRow(row, ring, baseline)),
  );
}

interface TimedStrategy extends MeshStrategy, Timing {
  readonly kind: string;
  readonly sent: number;
  readonly betweenNodes: number;
  readonly peak: number;
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
    sent: row.sent / 1e9,
    betweenNodes: row.betweenNodes / 1e9,
    peak: row.peak / 1e9,
  };
}

function createTable({ id, title, problem, cluster: { topology, bandwidth } }: Comparison, rows: Table["rows"]): Table {
  const { numHeads, numKvHeads = numHeads, headDim, tokens } = problem;
  const where = `${topology.name}, ${(bandwidth / 1e9).toFixed(1)} GB/s`;
  return {
    id,
    title: `${title}: ${numHeads} heads, ${numKvHeads} KV heads of ${headDim}, ${tokens} tokens; ${where}`,
    columns: [
      { key: "kind", head: "" },
      { key: "way", head: "way" },
      { key: "mesh", head: "mesh, outer · inner" },
      { key: "seconds", head: "seconds a layer", format: 3 },
      { key: "overRing", head: "over ring", format: "times" },
      { key: "overBaseline", head: "over the strongest baseline", format: "times" },
      { key: "waits", head: "waits", format: "percent" },
      { key: "sent", head: "GB sent per rank", format: 2 },
      { key: "betweenNodes", head: "between nodes", format: 2 },
      { key: "peak", head: "peak GB", format: 2 },
    ],
    rows,
  };
}
