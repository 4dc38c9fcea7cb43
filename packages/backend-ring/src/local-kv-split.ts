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

// In backward, computing on the local keys overlaps with two transfers: that of the first remote keys, and that of the
// last gradients. A rank therefore attends to some local keys first, and to the rest during the last transfer. Other
// ranks are not affected.

/** The keys of a call as one rank attends to them in backward. */
export interface BackwardKeys {
  /**
   * Coordinates 0 … size − 1 along the axis are the shards. If the local keys are split, size and size + 1 are the two
   * parts.
   */
  readonly layout: Layout;
  /** Number of local keys in the first part; undefined if the local keys are not split. */
  readonly numFirstRows: number | undefined;
}

/** The first part holds a multiple of this number of keys: the block size along keys in the backward kernels. */
export const SPLIT_MULTIPLE = 256;

/** Creates a function that returns the keys of a backward, cached by call and coordinate. */
export function createBackwardKeysCache(
  axis: string,
  inner: AttentionBackend,
): (call: ShardedAttentionCall, from: Coordinate, dependencies: DependencyTable) => BackwardKeys {
  const cache = new LayoutCache<BackwardKeys>([]);
  return (call, from, dependencies) =>
    cache.getOrCreate(call, from, () => {
      // With a communicating inner backend, a second part would cost a second round of its communication.
      const isKeySplit = inner.axes.length === 0 && hasLastStepTransfer(dependencies, from[axis]!);
      const numFirstRows = isKeySplit ? balancedRowCount(call, from) : undefined;
      if (numFirstRows === undefined) return { layout: call.keys, numFirstRows };
      const keyParts = splitSpans(call.keys.spans(from), numFirstRows);
      const spans = (at: Coordinate) => keyParts[at[axis]! - dependencies.size] ?? call.keys.spans(at);
      return { layout: { ...call.keys, spans }, numFirstRows };
    });
}

/** Returns whether a rank sends or receives gradients of the last step. */
function hasLastStepTransfer(dependencies: DependencyTable, rank: number): boolean {
  const last = dependencies.size - 1;
  const left = modulo(rank - 1, dependencies.size); // computes on the keys of `rank` at the last step
  return sendPeer(dependencies, rank, last) !== undefined || sendPeer(dependencies, left, last) === rank;
}

/**
 * Returns the number of leading local keys that account for half of the visible pairs between local queries and local
 * keys; undefined if there are too few keys to split.
 */
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
