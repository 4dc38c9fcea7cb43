import {
  defineOptions,
  type Mask,
  OptionError,
  option,
  type OptionsOf,
  resolvePlacement,
  resolveShards,
  resolveSlices,
  type Slice,
  type Span,
} from "@mosaic/core";
import { visiblePairsUnchecked } from "@mosaic/core/context-parallel";
import { RowOwners, visibleKeys } from "../required-rows.ts";
import { computeTime } from "./assignment.ts";
import { CostModel, dispatchCostOptions } from "./cost.ts";

export const evaluateDispatchOptions = defineOptions("evaluateDispatch", {
  /** Who sees what; or one mask for each sample of the batch, whose pairs and rows are summed. */
  mask: option.either(option.mask(), option.array(option.mask())),
  /** Length of the sequence, of queries if keys have a placement of their own. */
  length: option.integer({ min: 0 }),
  /** How many ranks share the sequence. */
  ranks: option.integer({ min: 1, max: 65_536 }),
  /** How it is cut. */
  placement: option.placement(),
  /** Length of the keys' sequence. Default: that of queries. */
  keys: option.integer({ min: 0, optional: true }),
  /** How the keys are cut. Default: as the queries. */
  keyPlacement: option.placement({ optional: true }),
  /** What time is predicted by: a DispatchCost. Default: an H100 with a port of 400 Gbit/s. */
  cost: option.nested(dispatchCostOptions, { optional: true, expected: "a DispatchCost" }),
});
/** What `evaluateDispatch` takes. */
export type EvaluateDispatchOptions = OptionsOf<typeof evaluateDispatchOptions>;

/** What one rank has to do in a pass. */
export interface RankDispatchLoad {
  readonly rows: number;
  /** Visible (query, key) pairs. */
  readonly pairs: number;
  /** Rows of keys that it receives, each once, and that it sends, once to each rank that requires them. */
  readonly receivedRows: number;
  readonly sentRows: number;
  /** Predicted seconds. */
  readonly time: number;
}

export interface DispatchEvaluation {
  readonly ranks: readonly RankDispatchLoad[];
  /** Most pairs of a rank over their mean. */
  readonly imbalance: number;
  /** Σ of rows received by ranks. */
  readonly rows: number;
  /** Σ of rows received by hosts, if `ranksPerHost` is more than 1. */
  readonly hostRows: number | undefined;
  /** Predicted seconds of the slowest rank. */
  readonly time: number;
  /** What `dispatch` minimizes: `time`, and a tenth of the mean receive time. */
  readonly objective: number;
}

/**
 * Load, rows and predicted time by rank, of any placement: `dispatch`'s, or "zigzag", "striped", "contiguous" to compare it
 * with. Counts exactly what `flex` moves, pair by pair of ranks, without what `dispatch` counted.
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
 * @throws OptionError for options that are none; what masks and placements throw.
 */
export function evaluateDispatch(options: EvaluateDispatchOptions): DispatchEvaluation {
  const settings = evaluateDispatchOptions.parse(options);
  const { length, ranks, keys = length } = settings;
  const model = new CostModel(dispatchCostOptions.parse(settings.cost ?? {}));
  const placement = resolvePlacement(settings.placement);
  const queryShards = resolveShards(placement, ranks, length);
  const keyPlacement = settings.keyPlacement === undefined ? placement : resolvePlacement(settings.keyPlacement);
  const keyShards = resolveShards(keyPlacement, ranks, keys);
  const masks = Array.isArray(settings.mask) ? (settings.mask as readonly Mask[]) : [settings.mask as Mask];
  if (masks.length === 0) {
    throw new OptionError({
      where: "evaluateDispatch: mask",
      expected: "a mask, or one mask per sample",
      received: "none",
    });
  }
  const pairs = new Float64Array(ranks);
  const rankCounter = new RequiredRowCounter(keyShards);
  const ranksPerHost = model.ranksPerHost;
  const hostCounter = model.isTwoLevel ? new RequiredRowCounter(groupShardsByHost(keyShards, ranksPerHost)) : undefined;
  const hostQueryShards = hostCounter ? groupShardsByHost(queryShards, ranksPerHost) : [];
  for (const mask of masks) {
    const slices = resolveSlices(mask, length, keys);
    const allKeys = [{ start: 0, length: keys, step: 1 }];
    for (const [rank, spans] of queryShards.entries()) pairs[rank]! += visiblePairsUnchecked(spans, allKeys, slices);
    rankCounter.addRequiredRows(queryShards, slices);
    hostCounter?.addRequiredRows(hostQueryShards, slices);
  }
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

  addRequiredRows(queries: readonly (readonly Span[])[], slices: readonly Slice[]): void {
    for (const [rank, spans] of queries.entries()) {
      const requiredRows = this.#owners.collectRequiredRows(visibleKeys(spans, slices), rank);
      this.receivedRows[rank]! += requiredRows.count;
      for (const owner of requiredRows.owners(0, requiredRows.count))
        this.sentRows[owner]! += requiredRows.numRowsFrom(owner);
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
