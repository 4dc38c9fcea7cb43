import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { profiles, recordRepresentatives } from "@mosaic/planner";
import { createProfile, simulateTiming } from "./clusters.ts";
import type { Table } from "./table.ts";
import { countVolumes, type MeshStrategy, type Problem, ringStrategy, tileStrategy } from "./volumes.ts";

const RANKS_PER_NODE = 8;
/** The problem of docs/backends.md. */
const problem = { tokens: 1_048_576, numHeads: 32, numKvHeads: 8, headDim: 128 };

/** A current network, and the one fitted to the waiting time of Mesh-Attention's ring (table `mesh.fit`). */
const networks = {
  fast: profiles["h100-ib400"],
  slow: createProfile({
    gpu: "h100",
    topology: { name: "nodes of 8 GPUs, 4 ports", ranksPerNode: RANKS_PER_NODE, ports: 4, intraNodeSpeedup: 10 },
    bandwidth: 9.43e9,
  }),
};

/**
 * Strategies to compare, by their names in the chart. The number of ranks is a power of two. The result is undefined if
 * a strategy does not support that many ranks.
 */
const rankStrategies: Readonly<Record<string, (ranks: number) => MeshStrategy | undefined>> = {
  ring: (ranks) => ringStrategy(ranks),
  "double ring": (ranks) =>
    createNestedStrategy("double ring", ring({ axis: "seq", inner: ring({ axis: "gpu" }) }), ranks, "gpu"),
  Attention2D: (ranks) => tileStrategy(tileShape(ranks), "fused"),
  "Mesh-Attention": (ranks) => tileStrategy(tileShape(ranks), "overlapped"),
  ulysses: (ranks) =>
    ranks > problem.numHeads ? undefined : { name: "ulysses", mesh: { sp: ranks }, backend: ulysses() },
  "ulysses × ring": (ranks) =>
    createNestedStrategy("ulysses × ring", ulysses({ axis: "head", inner: ring({ axis: "seq" }) }), ranks, "head"),
  "ulysses × mesh2d": (ranks) => {
    const [columns, rows] = tileShape(ranks / RANKS_PER_NODE);
    const innerMesh = mesh2d({ axis: "seq", shape: [rows, columns] });
    return createNestedStrategy("ulysses × mesh2d", ulysses({ axis: "head", inner: innerMesh }), ranks, "head");
  },
};

/** Returns a strategy with a backend within nodes, along `innerAxis`, and another between them, along `seq`. */
// oxlint-disable-next-line max-params -- its name, what it is, and on what
function createNestedStrategy(
  name: string,
  backend: MeshStrategy["backend"],
  ranks: number,
  innerAxis: string,
): MeshStrategy {
  return { name, mesh: { seq: ranks / RANKS_PER_NODE, [innerAxis]: RANKS_PER_NODE }, backend };
}

/**
 * Returns chunks of queries × chunks of keys, as near to a square as powers of two allow. Chunks of queries are larger
 * here, so there are fewer of them.
 */
function tileShape(ranks: number): readonly [number, number] {
  const queries = 2 ** Math.floor(Math.log2(ranks) / 2);
  return [queries, ranks / queries];
}

/**
 * Evaluates every strategy on every number of ranks: one attention call, forward and backward, on the same sequence.
 */
export function rankTable(rankCounts: readonly number[], sizes: Problem = problem): Table {
  const rows = Object.entries(rankStrategies).flatMap(([strategy, createStrategy]) =>
    rankCounts.flatMap((ranks) => {
      const meshStrategy = createStrategy(ranks);
      return meshStrategy ? [{ strategy, ranks, ...evaluate(meshStrategy, sizes) }] : [];
    }),
  );
  const { tokens, numHeads, numKvHeads, headDim } = { numKvHeads: sizes.numHeads, ...sizes };
  return {
    id: "ranks",
    title: `Time, bytes sent and peak memory of one attention call by number of ranks: ${tokens} tokens, ${numHeads} heads, ${numKvHeads} KV heads of ${headDim}`,
    columns: [
      { key: "strategy", head: "strategy" },
      { key: "ranks", head: "ranks", format: "integer" },
      { key: "fast", head: "s, h100-ib400", format: 4 },
      { key: "fastWaits", head: "waits", format: "percent" },
      { key: "slow", head: "s, fitted network", format: 4 },
      { key: "slowWaits", head: "waits", format: "percent" },
      { key: "sent", head: "GB sent per rank", format: 3 },
      { key: "betweenNodes", head: "between nodes", format: 3 },
      { key: "peak", head: "peak GB", format: 3 },
    ],
    rows,
  };
}

/** Evaluates a strategy. Without a mask all nodes do the same work, so only representative ranks are recorded. */
function evaluate({ backend, mesh }: MeshStrategy, sizes: Problem): Table["rows"][number] {
  const record = recordRepresentatives({ ...sizes, backend, mesh }, { ranksPerNode: RANKS_PER_NODE });
  const { both, betweenNodes } = countVolumes(record, RANKS_PER_NODE);
  const [fast, slow] = [simulateTiming(record, networks.fast), simulateTiming(record, networks.slow)];
  return {
    ...{ fast: fast.seconds, fastWaits: fast.waitShare, slow: slow.seconds, slowWaits: slow.waitShare },
    ...{ sent: both.bytes / 1e9, betweenNodes: betweenNodes.bytes / 1e9 },
    peak: record.ranks.reduce((maxBytes, { peakBytes }) => Math.max(maxBytes, peakBytes), 0) / 1e9,
  };
}

/** Returns the table for powers of two from 16 to 1 024. */
export function rankTables(): readonly Table[] {
  return [rankTable([16, 32, 64, 128, 256, 512, 1024])];
}
