import { defineOptions, option, type OptionsOf, resolvePlacement, resolveShards, type Span } from "@mosaic/core";
import { unionSlices, visiblePairsUnchecked } from "@mosaic/core/context-parallel";
import { RowOwners, visibleKeys } from "../required-rows.ts";
import { computeTime } from "./assignment.ts";
import { CostModel, dispatchCostOptions } from "./cost.ts";
import type { WeightedMask } from "./problem.ts";
import { paddingOptions, resolveSampleMasks, type SampleLengths, toSampleLengths } from "./sample-masks.ts";

export const evaluateDispatchOptions = defineOptions("evaluateDispatch", {
  /**
   * The mask, or one mask per sample of the batch. Pairs are summed over samples. A row of keys that any sample requires
   * is sent for all samples.
   */
  mask: option.either(option.mask(), option.array(option.mask())),
  /** Length of the sequence; of queries if keys have a separate placement. */
  length: option.integer({ min: 0 }),
  /** Number of ranks over which the sequence is sharded. */
  ranks: option.integer({ min: 1, max: 65_536 }),
  /** Placement of the sequence. */
  placement: option.placement(),
  /** Length of the keys' sequence. Default: that of queries. */
  keys: option.integer({ min: 0, optional: true }),
  /** Placement of the keys. Default: that of the queries. */
  keyPlacement: option.placement({ optional: true }),
  /**
   * Number of tokens of each sample, as `dispatch` takes it, `[5, 8]`, or `crossDispatch`, `{ queries: [5, 8], keys: [5,
   * 8] }`. A sample's mask applies to its own tokens. Default: no padding.
   */
  lengths: option.either(paddingOptions.lengths, paddingOptions.crossLengths, { optional: true }),
  /** The side of the padding: before the tokens ("left") or after them ("right"). Default "right". */
  padding: paddingOptions.padding,
  /** The cost model of the prediction, a DispatchCost. Default: an H100 with a port of 400 Gbit/s. */
  cost: option.nested(dispatchCostOptions, { optional: true, expected: "a DispatchCost" }),
});
/** Options of `evaluateDispatch`. */
export type EvaluateDispatchOptions = OptionsOf<typeof evaluateDispatchOptions>;

/** The load of one rank. */
export interface RankDispatchLoad {
  readonly rows: number;
  /** Visible (query, key) pairs, over all samples. */
  readonly pairs: number;
  /**
   * Rows of keys that it receives, each once, and rows that it sends, each once per rank that requires it. A row that
   * any sample requires is sent for all samples, and counts once for each.
   */
  readonly receivedRows: number;
  readonly sentRows: number;
  /** Predicted seconds. */
  readonly time: number;
}

/** The result of `evaluateDispatch`: the loads of the ranks under a placement, and what they sum up to. */
export interface DispatchEvaluation {
  readonly ranks: readonly RankDispatchLoad[];
  /** Ratio of the most visible pairs of a rank to the mean over ranks. */
  readonly imbalance: number;
  /** Sum of the rows received by ranks. */
  readonly rows: number;
  /** Sum of the rows received by hosts; undefined if `ranksPerHost` is 1. */
  readonly hostRows: number | undefined;
  /** Predicted seconds of the slowest rank. */
  readonly time: number;
  /** The objective that `dispatch` minimizes: `time` plus a tenth of the mean receive time. */
  readonly objective: number;
}

/**
 * Computes the load, rows and predicted time of each rank for any placement: that of `dispatch`, or "zigzag", "striped"
 * or "contiguous" for comparison. Counts exactly the rows that `flex` moves between each pair of ranks, independently
 * of the counts of `dispatch`.
 *
 * @example
 * ```ts
 * import { masks } from "@mosaic/core";
 * import { dispatch, evaluateDispatch } from "@mosaic/backend-flex";
 * const settings = { mask: masks.documents([40, 8, 8, 8], "causal"), length: 64, ranks: 2 };
 * const before = evaluateDispatch({ ...settings, placement: "contiguous" });
 * before.imbalance.toFixed(2); // => "1.14"
 * evaluateDispatch({ ...settings, placement: dispatch(settings) }).objective <= before.objective; // => true
 * ```
 * @throws OptionError for invalid options, and any error of the masks and placements.
 */
export function evaluateDispatch(options: EvaluateDispatchOptions): DispatchEvaluation {
  const settings = evaluateDispatchOptions.parse(options);
  const { length, ranks, keys = length } = settings;
  const model = new CostModel(dispatchCostOptions.parse(settings.cost ?? {}));
  const placement = resolvePlacement(settings.placement);
  const queryShards = resolveShards(placement, ranks, length);
  const keyPlacement = settings.keyPlacement === undefined ? placement : resolvePlacement(settings.keyPlacement);
  const keyShards = resolveShards(keyPlacement, ranks, keys);
  const { mask, padding } = settings;
  const lengths = Array.isArray(settings.lengths) ? toSampleLengths(settings.lengths) : settings.lengths;
  const batchMask = { mask, padding, lengths: lengths as SampleLengths | undefined };
  const sampleMasks = resolveSampleMasks("evaluateDispatch", batchMask, { queries: length, keys });
  const pairs = new Float64Array(ranks);
  const rankCounter = new RequiredRowCounter(keyShards);
  const ranksPerHost = model.ranksPerHost;
  const hostCounter = model.isTwoLevel ? new RequiredRowCounter(groupShardsByHost(keyShards, ranksPerHost)) : undefined;
  const hostQueryShards = hostCounter ? groupShardsByHost(queryShards, ranksPerHost) : [];
  const allKeys = [{ start: 0, length: keys, step: 1 }];
  for (const slices of sampleMasks)
    for (const [rank, spans] of queryShards.entries()) pairs[rank]! += visiblePairsUnchecked(spans, allKeys, slices);
  const batch = { slices: unionSlices({ mask: [], modifiers: { sampleMasks } }), samples: sampleMasks.length };
  rankCounter.addRequiredRows(queryShards, batch);
  hostCounter?.addRequiredRows(hostQueryShards, batch);
  const { receivedRows, sentRows } = rankCounter;
  const { time, objective } = computeTime({ ranks, model }, { pairs, receivedRows, sentRows, hosts: hostCounter });
  return {
    ranks: queryShards.map((spans, rank) => {
      const load = { pairs: pairs[rank]!, receivedRows: receivedRows[rank]!, sentRows: sentRows[rank]! };
      const host = Math.floor(rank / ranksPerHost);
      const hostLoad = hostCounter && {
        pairs: 0,
        receivedRows: hostCounter.receivedRows[host]!,
        sentRows: hostCounter.sentRows[host]!,
      };
      return { rows: countRows(spans), ...load, time: model.rankTime(load, hostLoad) };
    }),
    imbalance: sum(pairs) === 0 ? 1 : (pairs.reduce((max, each) => Math.max(max, each), 0) * ranks) / sum(pairs),
    rows: sum(receivedRows),
    hostRows: hostCounter && sum(hostCounter.receivedRows),
    time,
    objective,
  };
}

class RequiredRowCounter {
  readonly receivedRows: Float64Array;
  readonly sentRows: Float64Array;
  readonly #owners: RowOwners;

  constructor(shards: readonly (readonly Span[])[]) {
    this.#owners = new RowOwners(shards);
    this.receivedRows = new Float64Array(shards.length);
    this.sentRows = new Float64Array(shards.length);
  }

  addRequiredRows(queries: readonly (readonly Span[])[], { slices, samples }: WeightedMask): void {
    for (const [rank, spans] of queries.entries()) {
      const requiredRows = this.#owners.collectRequiredRows(visibleKeys(spans, slices), rank);
      this.receivedRows[rank]! += samples * requiredRows.count;
      for (const owner of requiredRows.owners(0, requiredRows.count))
        this.sentRows[owner]! += samples * requiredRows.numRowsFrom(owner);
    }
  }
}

function groupShardsByHost(shards: readonly (readonly Span[])[], ranksPerHost: number): Span[][] {
  const hosts: Span[][] = Array.from({ length: Math.ceil(shards.length / ranksPerHost) }, () => []);
  for (const [rank, spans] of shards.entries()) hosts[Math.floor(rank / ranksPerHost)]!.push(...spans);
  return hosts;
}

function countRows(spans: readonly Span[]): number {
  return spans.reduce((total, { length }) => total + length, 0);
}

function sum(values: Float64Array): number {
  return values.reduce((total, each) => total + each, 0);
}
