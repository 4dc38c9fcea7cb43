import { defineOptions, option, type OptionsOf, type ResolvedOptionsOf } from "@mosaic/core";

const nonNegativeRange = { min: 0 } as const;

// Defaults: 64 query heads and 8 KV heads of dimension 128 in bfloat16, which is 4 · 64 · 128 operations per pair and
// 2 · 8 · 128 · 2 bytes per row of k and v.
export const dispatchCostOptions = defineOptions("DispatchCost", {
  /**
   * Seconds of forward compute per visible pair. The default corresponds to 64 heads of 128 at 500 Tflop/s. Default:
   * 6.5536e-11.
   */
  pair: option.number({ ...nonNegativeRange, default: 6.5536e-11 }),
  /**
   * Seconds of backward compute per visible pair. The default assumes five matrix products instead of two. Default:
   * 1.6384e-10.
   */
  backwardPair: option.number({ ...nonNegativeRange, default: 1.6384e-10 }),
  /**
   * Seconds to receive or send a row of k and v. The default corresponds to 8 heads of 128 in bfloat16 at 50 GB/s.
   * Default: 8.192e-8.
   */
  row: option.number({ ...nonNegativeRange, default: 8.192e-8 }),
  /** Seconds to receive or send a row of dk and dv, in float32. Default: 1.6384e-7. */
  gradientRow: option.number({ ...nonNegativeRange, default: 1.6384e-7 }),
  /** Fixed seconds per pass that has any transfers. Default: 0.00002. */
  latency: option.number({ ...nonNegativeRange, default: 20e-6 }),
  /** Weight of the forward pass. Default: 1. */
  forward: option.number({ ...nonNegativeRange, default: 1 }),
  /** Weight of the backward pass; 0 for inference. Default: 1. */
  backward: option.number({ ...nonNegativeRange, default: 1 }),
  /**
   * Ranks per host. If more than 1, a row sent between hosts counts once per host that requires it, and `row` is the
   * time on a rank's link between hosts. Default: 1.
   */
  ranksPerHost: option.integer({ min: 1, default: 1 }),
  /**
   * Time of a row within a host as a fraction of `row` and `gradientRow`. The default corresponds to NVLink at 450 GB/s
   * relative to 50 GB/s. Default: 0.11.
   */
  localRow: option.number({ ...nonNegativeRange, default: 0.11 }),
});
/** The cost model by which `dispatch` compares placements. It must be equal on all ranks. */
export type DispatchCost = OptionsOf<typeof dispatchCostOptions>;
export type ResolvedCost = ResolvedOptionsOf<typeof dispatchCostOptions>;

/** Weight of the transfer time of received rows in the objective, even if it overlaps with compute: a tenth. */
const HIDDEN_TRANSFER_WEIGHT = 0.1;

interface PassCost {
  readonly secondsPerPair: number;
  /** Seconds of a row of k and v that is sent to a rank that requires it. */
  readonly secondsPerKvRow: number;
  /** Seconds of the gradient of that row, which is returned. */
  readonly secondsPerGradientRow: number;
  readonly latency: number;
}

/** The visible pairs, received rows and sent rows of a rank, or of a host whose ranks share its links. */
export interface Load {
  readonly pairs: number;
  readonly receivedRows: number;
  readonly sentRows: number;
}

/** Predicts the time of loads. */
export class CostModel {
  readonly ranksPerHost: number;
  readonly isTwoLevel: boolean;
  /** Seconds per visible pair, summed over the passes. */
  readonly secondsPerPair: number;
  readonly #passes: readonly PassCost[];
  /** By pass: seconds per pair, per row of k and v and per row of gradients, and latency. */
  readonly #passCoefficients: Float64Array;
  readonly #localRowFactor: number;

  constructor(cost: ResolvedCost) {
    const {
      pair: secondsPerPair,
      backwardPair,
      row,
      gradientRow,
      latency,
      forward,
      backward,
      ranksPerHost,
      localRow,
    } = cost;
    this.#passes = [
      {
        secondsPerPair: secondsPerPair * forward,
        secondsPerKvRow: row * forward,
        secondsPerGradientRow: 0,
        latency: latency * forward,
      },
      {
        secondsPerPair: backwardPair * backward,
        secondsPerKvRow: row * backward,
        secondsPerGradientRow: gradientRow * backward,
        latency: latency * backward,
      },
    ].filter((_, i) => [forward, backward][i]! > 0);
    this.#passCoefficients = Float64Array.from(
      this.#passes.flatMap((pass) => [
        pass.secondsPerPair,
        pass.secondsPerKvRow,
        pass.secondsPerGradientRow,
        pass.latency,
      ]),
    );
    this.secondsPerPair = this.#passes.reduce((sum, pass) => sum + pass.secondsPerPair, 0);
    this.ranksPerHost = ranksPerHost;
    this.isTwoLevel = ranksPerHost > 1;
    this.#localRowFactor = this.isTwoLevel ? localRow : 1;
  }

  /**
   * Returns the seconds of a rank: for each pass, the largest of compute, receive and send. `host` has the rows of all
   * ranks of its host.
   */
  rankTime({ pairs, receivedRows, sentRows }: Load, host?: Load): number {
    if (!host) return this.rankTimeWithoutHost(pairs, receivedRows, sentRows);
    let seconds = 0;
    for (const pass of this.#passes) {
      const rowSeconds = Math.max(
        linkTime(pass, receivedRows, sentRows) * this.#localRowFactor,
        linkTime(pass, host.receivedRows, host.sentRows) / this.ranksPerHost,
      );
      seconds += Math.max(pass.secondsPerPair * pairs, rowSeconds > 0 ? pass.latency + rowSeconds : 0);
    }
    return seconds;
  }

  /** `rankTime` without a host. The search spends much of its time here, so it takes numbers. */
  rankTimeWithoutHost(pairs: number, receivedRows: number, sentRows: number): number {
    const coefficients = this.#passCoefficients;
    let seconds = 0;
    for (let i = 0; i < coefficients.length; i += 4) {
      const pairSeconds = coefficients[i]! * pairs;
      const receiveSeconds = coefficients[i + 1]! * receivedRows + coefficients[i + 2]! * sentRows;
      const sendSeconds = coefficients[i + 1]! * sentRows + coefficients[i + 2]! * receivedRows;
      const rowSeconds = (receiveSeconds > sendSeconds ? receiveSeconds : sendSeconds) * this.#localRowFactor;
      const transferSeconds = rowSeconds > 0 ? coefficients[i + 3]! + rowSeconds : 0;
      seconds += pairSeconds > transferSeconds ? pairSeconds : transferSeconds;
    }
    return seconds;
  }

  /** Returns the seconds of all that a rank receives: rows, and the gradients of the rows that it sent. */
  receiveTime(receivedRows: number, sentRows: number): number {
    const coefficients = this.#passCoefficients;
    let seconds = 0;
    for (let i = 0; i < coefficients.length; i += 4) {
      const rowSeconds = (coefficients[i + 1]! * receivedRows + coefficients[i + 2]! * sentRows) * this.#localRowFactor;
      if (rowSeconds > 0) seconds += coefficients[i + 3]! + rowSeconds;
    }
    return seconds;
  }

  /** Returns the seconds of the links of a host. */
  hostTime(receivedRows: number, sentRows: number): number {
    let seconds = 0;
    for (const pass of this.#passes) {
      const rowSeconds = linkTime(pass, receivedRows, sentRows) / this.ranksPerHost;
      if (rowSeconds > 0) seconds += pass.latency + rowSeconds;
    }
    return seconds;
  }

  /**
   * Returns a lower bound of the link time of the slowest rank. One rank receives `maxRows` rows. Some rank, which may
   * be a different one, receives and sends at least 2 · `meanRows` rows in total.
   */
  minLinkTime(maxRows: number, meanRows: number, level: Level): number {
    if (maxRows === 0 && meanRows === 0) return 0;
    const share = this.linkShare(level);
    let [maxRowsTime, meanRowsTime] = [0, 0];
    for (const { secondsPerKvRow, secondsPerGradientRow, latency } of this.#passes) {
      maxRowsTime += latency + share * Math.max(secondsPerKvRow, secondsPerGradientRow) * maxRows;
      meanRowsTime += latency + share * (secondsPerKvRow + secondsPerGradientRow) * meanRows;
    }
    return Math.max(maxRowsTime, meanRowsTime);
  }

  /** Returns the largest number of rows that a rank can send in the given time. */
  maxRows(seconds: number, level: Level): number {
    const secondsPerRow = this.#passes.reduce(
      (sum, { secondsPerKvRow, secondsPerGradientRow }) => sum + Math.max(secondsPerKvRow, secondsPerGradientRow),
      0,
    );
    return seconds / (this.linkShare(level) * secondsPerRow);
  }

  /** Returns the cost of a received row in the objective, to be divided by the number of receivers. */
  hiddenRowCost(level: Level): number {
    const rowSeconds = this.#passes.reduce(
      (sum, { secondsPerKvRow, secondsPerGradientRow }) => sum + secondsPerKvRow + secondsPerGradientRow,
      0,
    );
    return HIDDEN_TRANSFER_WEIGHT * this.linkShare(level) * rowSeconds;
  }

  linkShare(level: Level): number {
    return level === "rank" ? this.#localRowFactor : 1 / this.ranksPerHost;
  }
}

/** The receivers of rows: ranks, each over its own link, or hosts, over the links of all their ranks. */
export type Level = "rank" | "host";

// Gradients move in the opposite direction: the receiver of a row sends its gradient.
function linkTime(
  { secondsPerKvRow, secondsPerGradientRow }: PassCost,
  receivedRows: number,
  sentRows: number,
): number {
  return Math.max(
    secondsPerKvRow * receivedRows + secondsPerGradientRow * sentRows,
    secondsPerKvRow * sentRows + secondsPerGradientRow * receivedRows,
  );
}
