import { defineOptions, option, type OptionsOf, type ResolvedOptionsOf } from "@mosaic/core";

const nonNegativeRange = { min: 0 } as const;

// 64 query heads and 8 KV heads of 128, bfloat16: 4 · 64 · 128 operations a pair, 2 · 8 · 128 · 2 bytes a row of k and v.
export const dispatchCostOptions = defineOptions("DispatchCost", {
  /** Seconds of forward compute per visible pair: 64 heads of 128 at 500 Tflop/s have the default. Default: 6.5536e-11. */
  pair: option.number({ ...nonNegativeRange, default: 6.5536e-11 }),
  /** Seconds of backward compute per visible pair: five products of matrices instead of two. Default: 1.6384e-10. */
  backwardPair: option.number({ ...nonNegativeRange, default: 1.6384e-10 }),
  /** Seconds that a row of k and v takes to be received, or sent: 8 heads of 128 in bfloat16 at 50 GB/s have the default. Default: 8.192e-8. */
  row: option.number({ ...nonNegativeRange, default: 8.192e-8 }),
  /** Seconds of a row of dk and dv, in float32. Default: 1.6384e-7. */
  gradientRow: option.number({ ...nonNegativeRange, default: 1.6384e-7 }),
  /** Seconds that the transfers of a pass take besides their rows, if there are any. Default: 0.00002. */
  latency: option.number({ ...nonNegativeRange, default: 20e-6 }),
  /** Weight of the forward pass. Default: 1. */
  forward: option.number({ ...nonNegativeRange, default: 1 }),
  /** Weight of the backward pass; 0 for inference. Default: 1. */
  backward: option.number({ ...nonNegativeRange, default: 1 }),
  /** Ranks of a host. Between hosts a row then counts once per host that requires it; `row` is of a rank's link between hosts. Default: 1. */
  ranksPerHost: option.integer({ min: 1, default: 1 }),
  /** What `row` and `gradientRow` take within a host, as a fraction: NVLink of 450 GB/s beside 50 GB/s. Default: 0.11. */
  localRow: option.number({ ...nonNegativeRange, default: 0.11 }),
});
/** What placements are compared by: it must be the same on every rank. */
export type DispatchCost = OptionsOf<typeof dispatchCostOptions>;
export type ResolvedCost = ResolvedOptionsOf<typeof dispatchCostOptions>;

/** Price of rows whose transfer is hidden behind compute: a tenth of their time. */
const HIDDEN_TRANSFER_WEIGHT = 0.1;

interface PassCost {
  readonly secondsPerPair: number;
  /** Of a row that is sent to the ranks that require it. */
  readonly secondsPerKvRow: number;
  /** Of the gradient of that row, on its way back. */
  readonly secondsPerGradientRow: number;
  readonly latency: number;
}

/** Visible pairs, and rows by link: of a rank, and of its host where ranks share one. */
export interface Load {
  readonly pairs: number;
  readonly receivedRows: number;
  readonly sentRows: number;
}

/** The time that loads take. */
export class CostModel {
  readonly ranksPerHost: number;
  readonly isTwoLevel: boolean;
  /** Seconds per visible pair, over the passes. */
  readonly secondsPerPair: number;
  readonly #passes: readonly PassCost[];
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
    this.secondsPerPair = this.#passes.reduce((sum, pass) => sum + pass.secondsPerPair, 0);
    this.ranksPerHost = ranksPerHost;
    this.isTwoLevel = ranksPerHost > 1;
    this.#localRowFactor = this.isTwoLevel ? localRow : 1;
  }

  /** Seconds of a rank: of each pass the greatest of compute, receive and send. `host`: rows of its host, all ranks together. */
  rankTime({ pairs, receivedRows, sentRows }: Load, host?: Load): number {
    let seconds = 0;
    for (const { secondsPerPair, secondsPerKvRow, secondsPerGradientRow, latency } of this.#passes) {
      let rowSeconds =
        linkTime(secondsPerKvRow, secondsPerGradientRow, { receivedRows, sentRows }) * this.#localRowFactor;
      if (host)
        rowSeconds = Math.max(rowSeconds, linkTime(secondsPerKvRow, secondsPerGradientRow, host) / this.ranksPerHost);
      seconds += Math.max(secondsPerPair * pairs, rowSeconds > 0 ? latency + rowSeconds : 0);
    }
    return seconds;
  }

  /** Seconds of the links of a host. */
  hostTime({ receivedRows, sentRows }: Omit<Load, "pairs">): number {
    let seconds = 0;
    for (const { secondsPerKvRow, secondsPerGradientRow, latency } of this.#passes) {
      const rowSeconds =
        linkTime(secondsPerKvRow, secondsPerGradientRow, { receivedRows, sentRows }) / this.ranksPerHost;
      if (rowSeconds > 0) seconds += latency + rowSeconds;
    }
    return seconds;
  }

  /**
   * Seconds of links at least, of the slowest rank: of one that receives `most` rows, and of one whose rows received and sent are
   * twice `mean` together, which may be another one.
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

  /** Rows that a rank sends at most in so many seconds. */
  maxRows(seconds: number, level: Level): number {
    const secondsPerRow = this.#passes.reduce(
      (sum, { secondsPerKvRow, secondsPerGradientRow }) => sum + Math.max(secondsPerKvRow, secondsPerGradientRow),
      0,
    );
    return seconds / (this.linkShare(level) * secondsPerRow);
  }

  /** What a row that is received costs in the objective, over the number of those who receive. */
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

/** Who receives rows: ranks, each over its own link, or hosts, over those of all their ranks. */
export type Level = "rank" | "host";

// A gradient travels the other way: who receives a row sends its gradient.
function linkTime(
  secondsPerKvRow: number,
  secondsPerGradientRow: number,
  { receivedRows, sentRows }: Omit<Load, "pairs">,
): number {
  return Math.max(
    secondsPerKvRow * receivedRows + secondsPerGradientRow * sentRows,
    secondsPerKvRow * sentRows + secondsPerGradientRow * receivedRows,
  );
}
