import type { AttentionRecord } from "@mosaic/planner";
import { recordProblem, ringStrategy, tileStrategy } from "./volumes.ts";
import { bytesPerMegaflop, minimizeScalar, createProfile, simulateTiming, type Topology } from "./clusters.ts";
import { lengths, type Model, models, stepSeconds } from "./published.ts";
import type { Table } from "./table.ts";

/** The paper implies four GPUs per node (64 on 16 nodes). It does not state the links. */
const topologies: readonly Topology[] = [
  { name: "all links equal", ranksPerNode: 1, ports: 1, intraNodeSpeedup: 1 },
  { name: "nodes of 4 GPUs, 4 ports", ranksPerNode: 4, ports: 4, intraNodeSpeedup: 10 },
  { name: "nodes of 4 GPUs, 2 ports", ranksPerNode: 4, ports: 2, intraNodeSpeedup: 10 },
  { name: "nodes of 4 GPUs, 1 port", ranksPerNode: 4, ports: 1, intraNodeSpeedup: 10 },
];

/** A fitted network, and the quality of the fit. */
export interface NetworkFit {
  readonly topology: Topology;
  readonly bandwidth: number;
  /** Sequences per step that the ring's step times imply, if kernels run as fast as in the profile. */
  readonly sequences: number;
  /** Root mean square of the relative errors in the growth of both curves. */
  readonly error: number;
  /**
   * Step time of the ring divided by that of the gathering schedule, predicted and read off the plot, mean over
   * lengths.
   */
  readonly ratio: number;
  readonly statedRatio: number;
}

/** Returns the seconds of a step: attention and the layers around it, which are the same for all strategies. */
export function computeStepSeconds(
  attentionSeconds: number,
  { numHeads, headDim }: Model,
  { tokens, ranks, matmul }: Step,
): number {
  const width = numHeads * headDim;
  // A layer has 12·width² weights. Each takes two operations per token in the forward and four in the backward.
  return attentionSeconds + (6 * 12 * width ** 2 * tokens) / ranks / matmul;
}

export interface Step {
  readonly tokens: number;
  readonly ranks: number;
  /** Operations per second of matrix products. */
  readonly matmul: number;
}

interface FitPoint {
  readonly ring: AttentionRecord;
  readonly mesh2d: AttentionRecord;
  readonly tokens: number;
  readonly publishedSeconds: { readonly ring: number; readonly mesh2d: number };
}

/**
 * Fits the bandwidth to the growth of the ten steps on 16 GPUs with the length. Each curve has its own unit: it grows
 * as n where transfers dominate, and as n² where compute does. The distance between the curves is then a prediction,
 * and so are 64 GPUs and the other models.
 */
export function fitNetworks(ranks: 16, tokens: readonly number[] = lengths): readonly NetworkFit[] {
  const gridSide = Math.sqrt(ranks);
  const { numHeads, headDim } = models[stepSeconds.model];
  const points = tokens.map((length): FitPoint => {
    const problem = { numHeads, headDim, tokens: length };
    const lengthIndex = lengths.indexOf(length as (typeof lengths)[number]);
    return {
      ring: recordProblem(ringStrategy(ranks), problem),
      mesh2d: recordProblem(tileStrategy([gridSide, gridSide], "fused"), problem),
      tokens: length,
      publishedSeconds: {
        ring: stepSeconds.ring[ranks][lengthIndex]!,
        mesh2d: stepSeconds.notOverlapped[ranks][lengthIndex]!,
      },
    };
  });
  return topologies.map((topology) => {
    const evaluateBandwidth = (bandwidth: number) => evaluateFit(points, topology, bandwidth);
    const bandwidth = minimizeScalar((x) => evaluateBandwidth(x).error, [3e8, 3e10]);
    return { topology, bandwidth, ...evaluateBandwidth(bandwidth) };
  });
}

function evaluateFit(
  points: readonly FitPoint[],
  topology: Topology,
  bandwidth: number,
): Omit<NetworkFit, "topology" | "bandwidth"> {
  const profile = createProfile({ gpu: "a100", topology, bandwidth });
  const model = models[stepSeconds.model];
  const computeLogTimeRatios = (strategyName: "ring" | "mesh2d") =>
    points.map(({ tokens, publishedSeconds, ...records }) => {
      const step = { tokens, ranks: records[strategyName].ranks.length, matmul: profile.kernels.matmul };
      return Math.log(
        publishedSeconds[strategyName] /
          computeStepSeconds(simulateTiming(records[strategyName], profile).seconds, model, step),
      );
    });
  const [ring, mesh2d] = [computeLogTimeRatios("ring"), computeLogTimeRatios("mesh2d")];
  const statedLogSpeedups = points.map((point) =>
    Math.log(point.publishedSeconds.ring / point.publishedSeconds.mesh2d),
  );
  return {
    sequences: Math.exp(mean(ring)) / model.layers,
    error: Math.sqrt(mean([...sumOfSquares(ring), ...sumOfSquares(mesh2d)])),
    ratio: Math.exp(mean(statedLogSpeedups) - mean(ring) + mean(mesh2d)),
    statedRatio: Math.exp(mean(statedLogSpeedups)),
  };
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** Returns the squared deviations from the mean. */
function sumOfSquares(values: readonly number[]): number[] {
  const average = mean(values);
  return values.map((value) => (value - average) ** 2);
}

export function fitTable(fits: readonly NetworkFit[]): Table {
  return {
    id: "attention2d.fit",
    title: "Network models fitted to the growth of step times on 16 GPUs, 2.7B",
    columns: [
      { key: "wiring", head: "topology" },
      { key: "bandwidth", head: "GB/s per port", format: 2 },
      { key: "bytesPerMegaflop", head: "bytes per MFLOP", format: 2 },
      { key: "error", head: "residual error", format: "percent" },
      { key: "sequences", head: "sequences per step", format: "integer" },
      { key: "ratio", head: "step time of ring ÷ Attention2D without overlap, predicted", format: "times" },
      {
        key: "statedRatio",
        head: "step time of ring ÷ Attention2D without overlap, read from the plot",
        format: "times",
      },
    ],
    rows: fits.map(({ topology, bandwidth, ...fitFields }) => ({
      ...fitFields,
      wiring: topology.name,
      bandwidth: bandwidth / 1e9,
      bytesPerMegaflop: bytesPerMegaflop(
        createProfile({ gpu: "a100", topology, bandwidth }),
        models[stepSeconds.model].headDim,
      ),
    })),
  };
}
