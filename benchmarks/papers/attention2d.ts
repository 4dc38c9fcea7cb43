import { formulas, type ChunksPerPass, recordProblem, ringStrategy, tileStrategy, countVolumes } from "./volumes.ts";
import { type NetworkFit, fitNetworks, fitTable, computeStepSeconds } from "./attention2d-fit.ts";
import { type Cluster, createProfile, simulateTiming, type Topology } from "./clusters.ts";
import { compare } from "./plans.ts";
import { attention2d, lengths, type ModelName, models, type Panel, panels } from "./published.ts";
import type { Table } from "./table.ts";

const totalChunks = ({ forward, backward }: ChunksPerPass): number => forward + backward;

/** Compares the volumes of the paper's analysis with those of our records. */
function gridVolumeTable(sizes: readonly number[]): Table {
  const rows = sizes.map((ranks) => {
    const gridSide = Math.sqrt(ranks);
    const problem = { tokens: 32 * ranks, numHeads: 8, headDim: 128 };
    const [ring, mesh] = [ringStrategy(ranks), tileStrategy([gridSide, gridSide], "fused")].map((strategy) =>
      countVolumes(recordProblem(strategy, problem), 1),
    );
    const publishedChunks = {
      ring: totalChunks(formulas.ring(ranks, 1, ranks)),
      mesh: totalChunks(formulas.tile([gridSide, gridSide], 1, 1)),
    };
    return {
      ranks,
      theirRing: publishedChunks.ring,
      theirMesh: publishedChunks.mesh,
      theirRatio: publishedChunks.ring / publishedChunks.mesh,
      ring: ring!.both.chunks,
      mesh: mesh!.both.chunks,
      ratio: ring!.both.chunks / mesh!.both.chunks,
      byteRatio: ring!.both.bytes / mesh!.both.bytes,
    };
  });
  return {
    id: "attention2d.volume",
    title: "Chunks sent per rank, forward and backward: Attention2D's analysis and our records",
    columns: [
      { key: "ranks", head: "ranks", format: "integer" },
      { key: "theirRing", head: "ring, theirs", format: 1 },
      { key: "theirMesh", head: "grid, theirs", format: 1 },
      { key: "theirRatio", head: "ratio", format: "times" },
      { key: "ring", head: "ring, ours", format: 1 },
      { key: "mesh", head: "grid, ours", format: 1 },
      { key: "ratio", head: "ratio", format: "times" },
      { key: "byteRatio", head: "ratio of bytes", format: "times" },
    ],
    rows,
  };
}

/** Lists each bar of the plots with the prediction for the fitted network. */
function barTable(cluster: Cluster, shownPanels: readonly Panel[], tokens: readonly number[]): Table {
  const profile = createProfile(cluster);
  const rows = shownPanels.flatMap((panel) => {
    const model = models[panel.model];
    const { numHeads, headDim } = model;
    const gridSide = Math.sqrt(panel.ranks);
    return tokens.map((length) => {
      const strategies = [
        ringStrategy(panel.ranks),
        tileStrategy([gridSide, gridSide], "fused"),
        tileStrategy([gridSide, gridSide]),
      ];
      const step = { tokens: length, ranks: panel.ranks, matmul: profile.kernels.matmul };
      const [ringSeconds, fusedSeconds, overlappedSeconds] = strategies.map((strategy) => {
        const { seconds } = simulateTiming(recordProblem(strategy, { numHeads, headDim, tokens: length }), profile);
        return computeStepSeconds(seconds, model, step);
      }) as [number, number, number];
      const lengthIndex = lengths.indexOf(length as (typeof lengths)[number]);
      return {
        model: panel.model,
        ranks: panel.ranks,
        tokens: length,
        stated: panel.notOverlappedSpeedups[lengthIndex],
        fused: ringSeconds / fusedSeconds,
        statedOverlapped: panel.overlappedSpeedups[lengthIndex],
        overlapped: ringSeconds / overlappedSeconds,
      };
    });
  });
  return {
    id: "attention2d.bars",
    title: `Step speedup over ring attention on A100s, ${cluster.topology.name}, ${(cluster.bandwidth / 1e9).toFixed(1)} GB/s`,
    columns: [
      { key: "model", head: "model" },
      { key: "ranks", head: "GPUs", format: "integer" },
      { key: "tokens", head: "tokens", format: "integer" },
      { key: "stated", head: "NO, theirs", format: "times" },
      { key: "fused", head: "fused, predicted", format: "times" },
      { key: "statedOverlapped", head: "O, theirs", format: "times" },
      { key: "overlapped", head: "overlapped, predicted", format: "times" },
    ],
    rows,
  };
}

/**
 * Lists the prediction of each fitted network for 64 GPUs. It shows the influence of the topology, which no paper
 * states.
 */
function topologyTable(fits: readonly NetworkFit[], panel: Panel, tokens: readonly number[]): Table {
  const rows = fits.map(({ topology, bandwidth }) => {
    const [meanRow] = meanTable(barTable({ gpu: "a100", topology, bandwidth }, [panel], tokens)).rows;
    return { ...meanRow, wiring: topology.name };
  });
  return {
    id: "attention2d.wirings",
    title: `Step speedup over ring attention, ${panel.model} on ${panel.ranks} A100s, by topology, mean over ${tokens.length} lengths`,
    columns: [
      { key: "wiring", head: "topology" },
      { key: "stated", head: "NO, theirs", format: "times" },
      { key: "fused", head: "fused, predicted", format: "times" },
      { key: "statedOverlapped", head: "O, theirs", format: "times" },
      { key: "overlapped", head: "overlapped, predicted", format: "times" },
    ],
    rows,
  };
}

const singleGpuNodes: Topology = { name: "one GPU per node", ranksPerNode: 1, ports: 1, intraNodeSpeedup: 1 };

/**
 * Networks of the H100s. The paper does not state theirs, so a range of bandwidths and of latencies per message is
 * used.
 */
export interface Networks {
  readonly ranks: number;
  readonly tokens: readonly number[];
  readonly bandwidths: readonly number[];
  readonly latencies: readonly number[];
}

const h100Networks: Networks = {
  ranks: attention2d.h100.ranks,
  tokens: [lengths[0], lengths[2], lengths[4]],
  bandwidths: [1e9, 5e9, 12.5e9, 50e9],
  latencies: [5e-6, 22e-6, 100e-6, 500e-6],
};

function h100Table({ ranks, tokens, bandwidths, latencies }: Networks): Table {
  const model = models["2.7B"];
  const { numHeads, headDim } = model;
  const gridSide = Math.sqrt(ranks);
  const rows = tokens.flatMap((length) => {
    const problem = { numHeads, headDim, tokens: length };
    const records = [
      recordProblem(ringStrategy(ranks), problem),
      recordProblem(tileStrategy([gridSide, gridSide], "fused"), problem),
    ] as const;
    return latencies.map((latency) => {
      const speedups = bandwidths.map((bandwidth) => {
        const profile = createProfile({ gpu: "h100", topology: singleGpuNodes, bandwidth, latency });
        const step = { tokens: length, ranks, matmul: profile.kernels.matmul };
        const [ringSeconds, fusedSeconds] = records.map((record) =>
          computeStepSeconds(simulateTiming(record, profile).seconds, model, step),
        );
        return [`at${bandwidth / 1e9}`, ringSeconds! / fusedSeconds!] as const;
      });
      return { tokens: length, latency: latency * 1e6, ...Object.fromEntries(speedups) };
    });
  });
  const columns = bandwidths.map((bandwidth): Table["columns"][number] => {
    return { key: `at${bandwidth / 1e9}`, head: `${bandwidth / 1e9} GB/s`, format: "times" };
  });
  return {
    id: "attention2d.h100",
    title: `A step on ${ranks} H100s, one per node, 2.7B: speedup of the fused grid over the ring (published: up to ${attention2d.h100.speedup})`,
    columns: [
      { key: "tokens", head: "tokens", format: "integer" },
      { key: "latency", head: "latency per message, µs", format: "integer" },
      ...columns,
    ],
    rows,
  };
}

/** Returns the fit that predicts the distance between the curves best. */
function selectBestFit(fits: readonly NetworkFit[]): NetworkFit {
  const logDistance = ({ ratio, statedRatio }: NetworkFit) => Math.abs(Math.log(ratio / statedRatio));
  return fits.reduce((best, fit) => (logDistance(fit) < logDistance(best) ? fit : best));
}

/** Averages the bars over lengths, which removes their noise. */
export function meanTable({ rows }: Table): Table {
  const rowsByPanel = new Map<string, (typeof rows)[number][]>();
  for (const row of rows) {
    const key = `${row["model"]} ${row["ranks"]}`;
    rowsByPanel.set(key, [...(rowsByPanel.get(key) ?? []), row]);
  }
  const means = [...rowsByPanel.values()].map((bars) => {
    const geometricMean = (key: string) =>
      Math.exp(bars.reduce((sum, bar) => sum + Math.log(Number(bar[key])), 0) / bars.length);
    const { model, ranks } = bars[0]!;
    const [statedMean, fusedMean] = [geometricMean("stated"), geometricMean("fused")];
    const [statedOverlappedMean, overlappedMean] = [geometricMean("statedOverlapped"), geometricMean("overlapped")];
    const deviations = { off: fusedMean / statedMean - 1, offOverlapped: overlappedMean / statedOverlappedMean - 1 };
    return {
      model,
      ranks,
      stated: statedMean,
      fused: fusedMean,
      statedOverlapped: statedOverlappedMean,
      overlapped: overlappedMean,
      ...deviations,
    };
  });
  return {
    id: "attention2d.means",
    title: "Step speedup, geometric mean over lengths",
    columns: [
      { key: "model", head: "model" },
      { key: "ranks", head: "GPUs", format: "integer" },
      { key: "stated", head: "NO, theirs", format: "times" },
      { key: "fused", head: "fused, predicted", format: "times" },
      { key: "off", head: "off by", format: "percent" },
      { key: "statedOverlapped", head: "O, theirs", format: "times" },
      { key: "overlapped", head: "overlapped, predicted", format: "times" },
      { key: "offOverlapped", head: "off by", format: "percent" },
    ],
    rows: means,
  };
}

/** Returns all tables of Attention2D. */
export function attention2dTables(): readonly Table[] {
  const fits = fitNetworks(16);
  const { topology, bandwidth } = selectBestFit(fits);
  const a100: Cluster = { gpu: "a100", topology, bandwidth };
  const bars = barTable(a100, panels, lengths);
  const h100: Cluster = { gpu: "h100", topology: singleGpuNodes, bandwidth: 5e9 };
  const publishedPlans = [tileStrategy([8, 8], "fused"), tileStrategy([8, 8])];
  const createProblem = (name: ModelName) => {
    const { numHeads, headDim } = models[name];
    return { numHeads, headDim, tokens: lengths[4] };
  };
  const comparisonOptions = { id: "attention2d.plans", ranks: 64, publishedPlans };
  return [
    gridVolumeTable([16, 64]),
    fitTable(fits),
    meanTable(bars),
    bars,
    topologyTable(fits, panels.find(({ model, ranks }) => model === "2.7B" && ranks === 64)!, [lengths[0], lengths[4]]),
    h100Table(h100Networks),
    ...(["2.7B", "13B"] as const).map((model) =>
      compare({
        ...comparisonOptions,
        title: `${model} on 64 A100s`,
        problem: createProblem(model),
        cluster: a100,
      }),
    ),
    compare({ ...comparisonOptions, title: "2.7B on 64 H100s", problem: createProblem("2.7B"), cluster: h100 }),
  ];
}
