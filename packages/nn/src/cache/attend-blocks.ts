import {
  type AttentionState,
  clipKeys,
  formatValue,
  hasDiagonalEnd,
  hasDiagonalStart,
  type Mask,
  masks,
  OptionError,
  resolveSlices,
  ShapeError,
  type Slice,
  type Tensor,
  type Tile,
} from "@mosaic/core";
import { mergeSinksUnchecked } from "@mosaic/core/context-parallel";
import type { BlockTable } from "./block-table.ts";
import type { CacheMemory } from "./cache-memory.ts";
import { emptyUnpackedState, emptyPackedState, mergeOverRanks, type StateShape } from "./state-merge.ts";
import { shiftKeys, visibleRowSlices } from "./visible-rows.ts";

/** The sequences of a call; the last `counts[i]` tokens of sequence i are queries. */
export interface CacheBatch {
  readonly layer: number;
  readonly tables: readonly BlockTable[];
  readonly counts: readonly number[];
}

/** Validated arguments of `attend`. */
export interface AttendCall {
  readonly q: Tensor;
  readonly mask?: Mask | undefined;
  readonly scale?: number | undefined;
  readonly softcap?: number | undefined;
  readonly sinks?: Tensor | undefined;
}

/**
 * The rows of this rank's memory that are visible to the queries of a batch: rows [row, row + count), and for each
 * sample the mask slices, whose key 0 is row `row`.
 */
interface VisibleRows {
  readonly row: number;
  readonly count: number;
  readonly samples: readonly (readonly Slice[])[];
  /** Number of queries, over all samples, that attend to their own key. */
  readonly numSelfAttendingQueries: number;
}

/** Computes the attention of each sequence's last tokens to the blocks of all ranks. To be called in a scope. */
export function attendBlocks(memory: CacheMemory, batch: CacheBatch, call: AttendCall): Tensor {
  const { ctx, group, valueHeadDim } = memory;
  const { q } = call;
  const { kernels } = ctx.device;
  const [batchSize, heads, rows] = q.shape as [number, number, number];
  if (q.size === 0) return ctx.device.empty([batchSize, rows, heads, valueHeadDim], q.dtype).permute([0, 2, 1, 3]);
  const visibleBlockRows = visibleRows(memory, batch, call.mask);
  group?.recordCall(() => describeCall(batch, q));
  const shape: StateShape = { batch: batchSize, heads, rows, valueSize: valueHeadDim };
  const foldIntoState = <State extends AttentionState>(state: State, shouldClear: boolean): State => {
    if (shouldClear) kernels.fill(state.out, 0);
    kernels.fill(state.lse, -Infinity);
    if (visibleBlockRows.count > 0) foldRows(memory, visibleBlockRows, { ...call, state, layer: batch.layer });
    return state;
  };
  const isSingleRank = group === undefined || group.size === 1;
  // The kernel writes `out` of every row that attends to a key. It is cleared only if some rows may attend to none.
  const state = isSingleRank
    ? foldIntoState(emptyUnpackedState(ctx, shape), visibleBlockRows.numSelfAttendingQueries < batchSize * rows)
    : mergeOverRanks(group, foldIntoState(emptyPackedState(ctx, shape), true), shape);
  if (call.sinks) mergeSinksUnchecked(state, call.sinks);
  if (isSingleRank && q.dtype === "float32") return state.out;
  const out = ctx.device.empty([batchSize, rows, heads, valueHeadDim], q.dtype).permute([0, 2, 1, 3]);
  kernels.copy(out, state.out);
  return out;
}

function describeCall({ layer, tables, counts }: CacheBatch, q: Tensor): string {
  const lengths = tables.map((table) => table.getLayerLength(layer));
  return `KvCache.attend(layer ${layer}, q [${q.shape.join(",")}] ${q.dtype}, lengths [${lengths.join(",")}], new [${counts.join(",")}])`;
}

/**
 * Folds this rank's keys into the states of all sequences with one kernel call. All samples share the same keys without
 * a copy (batch stride 0): the range of rows that are visible to any sample. The mask of a sample over these rows
 * represents its block table.
 */
function foldRows(
  { k, v, headDim }: CacheMemory,
  { row, count, samples }: VisibleRows,
  { q, scale = headDim ** -0.5, softcap, state, layer }: AttendCall & { state: AttentionState; layer: number },
): void {
  const view = (x: Tensor): Tensor => {
    const [, heads, , size] = x.shape as [number, number, number, number];
    const [layerStride, ...strides] = x.strides as [number, number, number, number];
    const offset = x.offset + layer * layerStride + row * strides[1];
    return x.view({ shape: [samples.length, heads, count, size], strides: [0, ...strides], offset });
  };
  const [firstSample] = samples;
  const sampleMasks = samples.length > 1 ? samples : undefined;
  const tile: Tile = {
    q: [{ start: 0, length: q.shape[2]!, step: 1 }],
    k: [{ start: 0, length: count, step: 1 }],
    mask: sampleMasks ? emptySlices : firstSample!,
    scale,
    ...((sampleMasks || softcap !== undefined) && { modifiers: { sampleMasks, softcap } }),
  };
  q.device.kernels.attend(state, q, { k: view(k), v: view(v) }, tile);
}

const emptySlices: readonly Slice[] = [];
const causal = masks.causal();
const windowMasks = new Map<number, Mask>();

function getDefaultMask(slidingWindow: number | undefined): Mask {
  if (slidingWindow === undefined) return causal;
  const mask = windowMasks.get(slidingWindow) ?? masks.slidingWindow(slidingWindow);
  windowMasks.set(slidingWindow, mask);
  return mask;
}

interface CachedRows {
  readonly revision: number;
  readonly tables: readonly BlockTable[];
  readonly lengths: readonly number[];
  readonly counts: readonly number[];
  readonly mask: Mask;
  readonly visible: VisibleRows;
}

/** The visible rows of the last call, by cache. All layers of a step attend to the same rows and reuse them. */
const cachedRowsByMemory = new WeakMap<CacheMemory, CachedRows>();

const haveSameElements = <T>(a: readonly T[], b: readonly T[]): boolean =>
  a.length === b.length && a.every((each, i) => each === b[i]);

function visibleRows(
  memory: CacheMemory,
  { layer, tables, counts }: CacheBatch,
  callMask: Mask | undefined,
): VisibleRows {
  const mask = callMask ?? getDefaultMask(memory.slidingWindow);
  const lengths = tables.map((table) => table.getLayerLength(layer));
  const cachedRows = cachedRowsByMemory.get(memory);
  if (
    cachedRows?.revision === memory.revision &&
    cachedRows.mask === mask &&
    haveSameElements(cachedRows.tables, tables) &&
    haveSameElements(cachedRows.lengths, lengths) &&
    haveSameElements(cachedRows.counts, counts)
  ) {
    return cachedRows.visible;
  }
  let numSelfAttendingQueries = 0;
  const samples = tables.map((table, i) => {
    const [count, length] = [counts[i]!, lengths[i]!];
    checkCount(count, length);
    // The default mask needs no validation. Its slices are not cached, because the lengths change in every step.
    const slices = mask === causal ? causal.slices(count, length) : resolveSlices(mask, count, length);
    for (const slice of slices) {
      checkSlice(slice, { mask, firstQueryPosition: length - count, memory });
      numSelfAttendingQueries += countSelfAttendingQueries(slice, length - count);
    }
    checkKeptKeys(slices, { firstQueryPosition: length - count, firstKeptPosition: table.firstKeptPosition });
    return visibleRowSlices(slices, table.listRankRows(memory.rank, 0, length));
  });
  const visible = { ...computeBoundingRows(samples), numSelfAttendingQueries };
  cachedRowsByMemory.set(memory, { revision: memory.revision, tables, lengths, counts, mask, visible });
  return visible;
}

/**
 * Returns the number of queries of a slice that attend to their own key, the last one that a causal mask allows. Without
 * a diagonal end, at most one does, and it is not counted.
 */
function countSelfAttendingQueries({ type, q0, q1, k0, k1 }: Slice, firstQueryPosition: number): number {
  if (!hasDiagonalEnd(type) || k1 !== firstQueryPosition + q1) return 0;
  // The first queries of the slice may be at positions before its first key.
  const firstQuery = k0 - firstQueryPosition;
  if (hasDiagonalStart(type)) return firstQuery <= q0 ? q1 - q0 : 0;
  return Math.max(0, q1 - Math.max(q0, firstQuery));
}

/** Computes the smallest range of rows that contains all visible rows of all samples. */
function computeBoundingRows(samples: readonly (readonly Slice[])[]): Omit<VisibleRows, "numSelfAttendingQueries"> {
  const allSlices = samples.flat();
  if (allSlices.length === 0) return { row: 0, count: 0, samples };
  let [row, end] = [Number.POSITIVE_INFINITY, 0];
  for (const { k0, k1 } of allSlices) [row, end] = [Math.min(row, k0), Math.max(end, k1)];
  return { row, count: end - row, samples: samples.map((slices) => slices.map((slice) => shiftKeys(slice, -row))) };
}

function checkCount(count: number, length: number): void {
  if (count <= length) return;
  throw new ShapeError({
    where: "KvCache: attend",
    expected: `q with at most ${length} tokens, the length of the sequence`,
    received: String(count),
    remedy: "append the keys and values of these tokens first",
  });
}

/**
 * Throws an OptionError if a query attends to a key that the sliding window has dropped. Only tokens before those of
 * the last append do.
 */
function checkKeptKeys(
  slices: readonly Slice[],
  { firstQueryPosition, firstKeptPosition }: { firstQueryPosition: number; firstKeptPosition: number },
): void {
  if (firstKeptPosition === 0) return;
  for (const slice of slices) {
    const [droppedKeys] = clipKeys(slice, 0, firstKeptPosition);
    if (droppedKeys === undefined) continue;
    throw new OptionError({
      where: "KvCache: attend",
      expected: `queries that attend to keys from position ${firstKeptPosition}, because the sliding window has dropped the tokens before it`,
      received: `a query at position ${firstQueryPosition + droppedKeys.q0} that attends to the key at position ${droppedKeys.k0}`,
      remedy: "pass only the queries of the tokens that were appended last",
    });
  }
}

/**
 * Throws an OptionError for a slice that is not causal, because later tokens would not be visible when decoding one
 * token at a time, or that exceeds the sliding window, because those keys were dropped.
 */
export function checkSlice(
  slice: Slice,
  {
    mask,
    firstQueryPosition,
    memory: { slidingWindow },
  }: { mask: Mask; firstQueryPosition: number; memory: CacheMemory },
): void {
  const { q0, q1, k0, k1, type } = slice;
  // Positions of the queries that are most restrictive for the end and for the start of the keys.
  const lastPosition = firstQueryPosition + (hasDiagonalEnd(type) ? q1 - 1 : q0);
  const firstPosition = firstQueryPosition + (hasDiagonalStart(type) ? q0 : q1 - 1);
  const isCausal = k1 - 1 <= lastPosition;
  const isInWindow = slidingWindow === undefined || k0 > firstPosition - slidingWindow || k0 >= k1;
  if (isCausal && isInWindow) return;
  throw new OptionError({
    where: "KvCache: mask",
    expected: isCausal ? `a mask within the cache's sliding window of ${slidingWindow} tokens` : "a causal mask",
    received: formatValue(mask.name),
    remedy: isCausal ? `use masks.slidingWindow(${slidingWindow})` : "use masks.causal() or masks.slidingWindow(size)",
  });
}
