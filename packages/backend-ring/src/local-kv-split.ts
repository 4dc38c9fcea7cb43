import { type AttentionBackend, type Coordinate, type Layout, type Span, spansLength } from "@mosaic/core";
import {
  type DependencyTable,
  LayoutCache,
  modulo,
  type ShardedAttentionCall,
  spansOfRowsUnchecked,
  unionSlices,
  visiblePairsUnchecked,
} from "@mosaic/core/context-parallel";
import { sendPeer } from "./exchange.ts";

// In backward the own keys hide two transfers: of the first keys that arrive, and of the last gradients that leave and return.
// So a rank attends to some of them first, and to the rest behind the last gradients. No other rank is concerned.

/** The keys of a call as one rank attends to them in backward. */
export interface BackwardKeys {
  /** Along the axis: 0 … size − 1 are the shards; where the own keys come in two parts, size and size + 1 are these. */
  readonly layout: Layout;
  /** Rows of the own keys in the first part; absent if they come at once. */
  readonly numFirstRows: number | undefined;
}

/** A part holds a multiple of them: the keys of a block in the backward kernels. */
export const SPLIT_MULTIPLE = 256;

/** The keys of backward by call and coordinate, each derived once. */
export function createBackwardKeysCache(
  axis: string,
  inner: AttentionBackend,
): (call: ShardedAttentionCall, from: Coordinate, dependencies: DependencyTable) => BackwardKeys {
  const cache = new LayoutCache<BackwardKeys>([]);
  return (call, from, dependencies) =>
    cache.getOrCreate(call, from, () => {
      // An inner backend that communicates would do so once more.
      const isKeySplit = inner.axes.length === 0 && hasLastStepTransfer(dependencies, from[axis]!);
      const numFirstRows = isKeySplit ? balancedRowCount(call, from) : undefined;
      if (numFirstRows === undefined) return { layout: call.keys, numFirstRows };
      const keyParts = splitSpans(call.keys.spans(from), numFirstRows);
      const spans = (at: Coordinate) => keyParts[at[axis]! - dependencies.size] ?? call.keys.spans(at);
      return { layout: { ...call.keys, spans }, numFirstRows };
    });
}

/** Whether gradients of the last step leave a rank, or come to it. */
function hasLastStepTransfer(dependencies: DependencyTable, rank: number): boolean {
  const last = dependencies.size - 1;
  const left = modulo(rank - 1, dependencies.size); // works on the keys of `rank` at the last step
  return sendPeer(dependencies, rank, last) !== undefined || sendPeer(dependencies, left, last) === rank;
}

/** How many of the own keys make half of the pairs that the own queries see among them; nothing if there are too few. */
function balancedRowCount(call: ShardedAttentionCall, from: Coordinate): number | undefined {
  const [queries, keys, mask] = [call.queries.spans(call.at), call.keys.spans(from), unionSlices(call)];
  const countPairs = (rows: number) =>
    visiblePairsUnchecked(queries, spansOfRowsUnchecked(keys, [{ start: 0, length: rows }]), mask);
  const rows = spansLength(keys);
  const targetPairs = countPairs(rows) / 2;
  let [low, high] = [1, Math.floor(rows / SPLIT_MULTIPLE) - 1];
  if (targetPairs === 0 || high < low) return undefined;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (countPairs(middle * SPLIT_MULTIPLE) < targetPairs) low = middle + 1;
    else high = middle;
  }
  return low * SPLIT_MULTIPLE;
}

function splitSpans(spans: readonly Span[], numFirstRows: number): readonly (readonly Span[])[] {
  const numRemainingRows = spansLength(spans) - numFirstRows;
  return [[{ start: 0, length: numFirstRows }], [{ start: numFirstRows, length: numRemainingRows }]].map((rows) =>
    spansOfRowsUnchecked(spans, rows),
  );
}
