/**
 * Statements of the papers, and their sources. Only parts of both papers were available: abstracts, some figures and
 * algorithms, and descriptions by others. The papers may state more than is listed here.
 */

/** Chen et al., "Mesh-Attention", 2025 (arXiv 2512.20968). */
export const meshAttention = {
  /** Abstract: with this number of GPUs, relative to ring attention. */
  ranks: 256,
  volumeReduction: { average: 0.79, maximum: 0.854 },
  speedup: { average: 2.9, maximum: 3.4 },
  /**
   * A summary of the paper: the share of the time of ring attention spent waiting for messages, at this number of GPUs
   * and tokens.
   */
  ringWaits: { ranks: 128, tokens: 1_048_576, share: 0.915 },
  /** Another summary: maximum reduction of waiting time, at similar compute time. */
  waitReduction: 0.749,
} as const;

/** Elango, "Attention2D", 2025 (arXiv 2503.15758). */
export const attention2d = {
  /** Abstract. */
  a100: { ranks: 64, nodes: 16, speedup: 5.0 },
  h100: { ranks: 64, nodes: 64, speedup: 9.4 },
} as const;

/** One panel of Attention2D's speedups over ring attention, a training step on A100s. */
export interface Panel {
  readonly model: ModelName;
  readonly ranks: 16 | 64;
  /** At each of `lengths`. Not overlapped: gathers, one kernel call, reduction. */
  readonly notOverlappedSpeedups: readonly number[];
  /** Overlapped: rings along columns and rows. */
  readonly overlappedSpeedups: readonly number[];
}

export const lengths = [8192, 16_384, 32_768, 65_536, 131_072] as const;

/** Read off the bars of the plots, ±0.02. */
export const panels: readonly Panel[] = [
  {
    model: "760M",
    ranks: 16,
    notOverlappedSpeedups: [2.88, 3.15, 2.61, 2.43, 2.66],
    overlappedSpeedups: [3.04, 2.48, 3.33, 3.27, 2.91],
  },
  {
    model: "2.7B",
    ranks: 16,
    notOverlappedSpeedups: [2.97, 2.88, 2.93, 3.02, 2.54],
    overlappedSpeedups: [2.69, 2.57, 2.39, 2.61, 2.6],
  },
  {
    model: "13B",
    ranks: 16,
    notOverlappedSpeedups: [2.39, 2.82, 3.24, 2.82, 2.75],
    overlappedSpeedups: [2.39, 3.06, 2.3, 2.3, 2.75],
  },
  {
    model: "760M",
    ranks: 64,
    notOverlappedSpeedups: [4.85, 4.5, 4.85, 4.21, 3.86],
    overlappedSpeedups: [2.89, 2.85, 2.63, 3.22, 2.96],
  },
  {
    model: "2.7B",
    ranks: 64,
    notOverlappedSpeedups: [4.31, 4.1, 4.35, 4.5, 4.24],
    overlappedSpeedups: [2.89, 3.46, 2.85, 2.96, 2.68],
  },
  {
    model: "13B",
    ranks: 64,
    notOverlappedSpeedups: [4.0, 3.88, 4.99, 4.85, 4.38],
    overlappedSpeedups: [2.85, 2.96, 3.03, 2.78, 2.54],
  },
];

/**
 * Seconds of a training step, read off the second plot, ±20 s. The plot does not name its model. The ratios of its
 * curves are nearest to the 2.7B panels, 1 % off in the mean over lengths.
 */
export const stepSeconds = {
  model: "2.7B",
  ring: { 16: [361, 712, 1415, 2774, 5710], 64: [417, 911, 1532, 3000, 6540] },
  notOverlapped: { 16: [122, 244, 478, 911, 2219], 64: [100, 209, 360, 662, 1537] },
} as const;

export type ModelName = "760M" | "2.7B" | "13B";

/** Properties of a model that determine the time of attention and of the layers around it. */
export interface Model {
  readonly layers: number;
  readonly numHeads: number;
  readonly headDim: number;
}

/**
 * The paper states "GPT-3-like" and the sizes. The layers, heads and head sizes are assumed to be those that the GPT-3
 * paper (Brown et al. 2020, table 2.1) gives for these sizes.
 */
export const models: Readonly<Record<ModelName, Model>> = {
  "760M": { layers: 24, numHeads: 16, headDim: 96 },
  "2.7B": { layers: 32, numHeads: 32, headDim: 80 },
  "13B": { layers: 40, numHeads: 40, headDim: 128 },
};
