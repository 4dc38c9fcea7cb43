import {
  attention,
  type CachedAttentionCall,
  concatenate,
  type GroupCastPlan,
  joinSpans,
  type Layout,
  layoutOf,
  type Mask,
  masks,
  OptionError,
  resolveSlices,
  type RowRange,
  scope,
  ShapeError,
  type Span,
  spansLength,
  type Tensor,
} from "@mosaic/core";
import { checkSlice } from "./attend-blocks.ts";
import { type BlockTable, extendTables } from "./block-table.ts";
import type { CacheMemory } from "./cache-memory.ts";
import { shiftKeys } from "./visible-rows.ts";

// Prefill with new tokens in shards: a prompt or a chunk of one. Their keys and values are sent to the ranks that own
// their blocks, and the queries attend through a backend. The cached tokens have a layout like that of any sequence, so
// that any backend can attend to them.

interface ShardedBatch {
  readonly layer: number;
  readonly tables: readonly BlockTable[];
}

/** A call of an attention module, with this rank's shards of q, k and v. */
export interface PrefillCall extends CachedAttentionCall {
  readonly q: Tensor;
  readonly k: Tensor;
  readonly v: Tensor;
}

/** Stores this rank's shards k [B,Hkv,S,D] and v [B,Hkv,S,Dv], and attends with q [B,H,S,D] to all tokens so far. */
export function prefill(memory: CacheMemory, { layer, tables }: ShardedBatch, call: PrefillCall): Tensor {
  const { q, k, v, layout, mask, backend } = call;
  const scoreOptions = { scale: call.scale, softcap: call.softcap, sinks: call.sinks ?? undefined };
  checkShards(memory, tables.length, call);
  const starts = tables.map((table) => table.getLayerLength(layer));
  checkMask(memory, starts, call);
  extendTables(
    layer,
    tables,
    tables.map(() => layout.length),
  );
  scope(() => {
    for (const [sample, table] of tables.entries()) {
      const [kRows, vRows] = [k, v].map((x) =>
        x
          .slice(0, sample, sample + 1)
          .to(memory.k.dtype)
          .contiguous(),
      );
      sendToBlockOwners(memory, { k: kRows!, v: vRows! }, { layer, table, start: starts[sample]!, layout });
    }
  });
  if (starts.every((start) => start === 0)) {
    return attention(memory.ctx, q, k, v, { backend, ...scoreOptions, mask, queries: layout, keys: layout });
  }
  return scope(() => {
    const outputs = tables.map((table, sample) => {
      const cachedKv = gatherCachedKv(memory, layer, table);
      const [cachedK, cachedV] = [cachedKv.k.to(q.dtype), cachedKv.v.to(q.dtype)];
      const options = { backend, ...scoreOptions, queries: layout, keys: cachedKv.layout };
      const visibleMask = restrictToKeptKeys(mask, {
        queries: layout.length,
        length: table.getLayerLength(layer),
        table,
      });
      const sampleQueries = q.slice(0, sample, sample + 1);
      return attention(memory.ctx, sampleQueries, cachedK, cachedV, { ...options, mask: visibleMask });
    });
    return outputs.length === 1 ? outputs[0]! : concatenate(outputs, 0);
  });
}

function checkShards({ axis, ctx, numKvHeads, headDim, valueHeadDim }: CacheMemory, batch: number, call: PrefillCall) {
  const { q, k, v, layout } = call;
  const where = "KvCache: prefill";
  if (layout.axes.length !== 1 || layout.axes[0] !== axis) {
    throw new OptionError({
      where,
      expected:
        axis === null
          ? "new tokens that are not sharded, because the cache has axis null"
          : `new tokens sharded along the cache's axis, ${axis}`,
      received: `new tokens sharded along [${layout.axes.join(", ")}]`,
      remedy: "create the cache with the axis of the module's backend, or pass the whole sequence without `sharded`",
    });
  }
  const rows = spansLength(layout.spans(ctx.mesh.coordinate));
  const hasShape = (x: Tensor, shape: readonly number[]) => x.shape.every((length, i) => length === shape[i]);
  const haveKvShapes =
    hasShape(k, [batch, numKvHeads, rows, headDim]) && hasShape(v, [batch, numKvHeads, rows, valueHeadDim]);
  const [, heads] = q.shape as [number, number, number, number];
  if (haveKvShapes && heads % numKvHeads === 0 && hasShape(q, [batch, heads, rows, headDim])) return;
  throw new ShapeError({
    where,
    expected: `q [${batch},H,${rows},${headDim}], k [${batch},${numKvHeads},${rows},${headDim}] and v [${batch},${numKvHeads},${rows},${valueHeadDim}], this rank's shard of ${layout.length} tokens, with H a multiple of ${numKvHeads}`,
    received: [q, k, v].map((x) => `[${x.shape.join(",")}]`).join(", "),
  });
}

/**
 * Throws an OptionError for the masks that are also rejected when the new tokens are not sharded, before anything is
 * stored or sent.
 */
function checkMask(memory: CacheMemory, starts: readonly number[], { mask, layout: { length } }: PrefillCall): void {
  for (const firstQueryPosition of new Set(starts))
    for (const slice of resolveSlices(mask, length, firstQueryPosition + length))
      checkSlice(slice, { mask, firstQueryPosition, memory });
}

/** Rows of a rank's shard whose tokens belong to one block. Their positions are position, position + step, …. */
interface BlockRows {
  readonly row: number;
  readonly position: number;
  readonly length: number;
  readonly step: number;
  readonly owner: number;
}

/** Splits the rows of a shard at block boundaries. */
function listBlockRows(spans: readonly Span[], start: number, table: BlockTable): BlockRows[] {
  const { blockSize } = table.cache;
  const blockRows: BlockRows[] = [];
  let row = 0;
  for (const span of spans) {
    for (let i = 0; i < span.length; ) {
      const position = start + span.start + i * span.step;
      const end = (Math.floor(position / blockSize) + 1) * blockSize;
      const length = Math.min(span.length - i, Math.ceil((end - position) / span.step));
      blockRows.push({ row: row + i, position, length, step: span.step, owner: table.getOwnerAt(position) });
      i += length;
    }
    row += span.length;
  }
  return blockRows;
}

interface ShardedRows {
  readonly layer: number;
  readonly table: BlockTable;
  readonly start: number;
  readonly layout: Layout;
}

/** Sends each row of k and v [1,Hkv,S,·] to the rank that owns its block, which stores it. */
function sendToBlockOwners(
  memory: CacheMemory,
  kv: { k: Tensor; v: Tensor },
  { layer, table, start, layout }: ShardedRows,
): void {
  const { ctx, group, axis, rank } = memory;
  const ranks = Array.from({ length: group!.size }, (_, i) => i);
  const rowsBySender = ranks.map((senderRank) =>
    listBlockRows(layout.spans({ ...ctx.mesh.coordinate, [axis!]: senderRank }), start, table),
  );
  const writeRows = (source: { k: Tensor; v: Tensor }, blockRows: BlockRows): void => {
    const { position, length, step, row } = blockRows;
    const firstRow = table.getRow(position);
    for (const name of ["k", "v"] as const) {
      const target = memory[name]
        .slice(0, layer, layer + 1)
        .slice(2, firstRow, firstRow + (length - 1) * step + 1, step);
      ctx.device.kernels.copy(target, source[name].slice(2, row, row + length));
    }
  };
  for (const blockRows of rowsBySender[rank]!) if (blockRows.owner === rank) writeRows(kv, blockRows);
  if (group!.size === 1) return;
  const plan = createGroupCastPlan(rowsBySender);
  const incomingRows = rowsBySender.flatMap((senderRows, sender) =>
    sender === rank ? [] : senderRows.filter(({ owner }) => owner === rank),
  );
  const count = incomingRows.reduce((sum, { length }) => sum + length, 0);
  const receivedKv = {
    k: ctx.device.empty(kv.k.shape.with(2, count), kv.k.dtype),
    v: ctx.device.empty(kv.v.shape.with(2, count), kv.v.dtype),
  };
  const label = `KvCache(${group!.name})`;
  group!.groupCast([receivedKv.k, receivedKv.v], [kv.k, kv.v], plan, { label }).wait();
  let row = 0;
  for (const blockRows of incomingRows) {
    writeRows(receivedKv, { ...blockRows, row });
    row += blockRows.length;
  }
}

/**
 * Creates the plan of the group-cast: for each sender and receiver, the rows of the sender's shard that the receiver
 * owns.
 */
function createGroupCastPlan(rowsBySender: readonly (readonly BlockRows[])[]): GroupCastPlan {
  const ranges = rowsBySender.map((senderRows, sender) =>
    rowsBySender.map((_, receiver) => (receiver === sender ? [] : listOwnerRanges(senderRows, receiver))),
  );
  return { size: rowsBySender.length, ranges: (sender, receiver) => ranges[sender]![receiver]! };
}

function listOwnerRanges(blockRows: readonly BlockRows[], owner: number): RowRange[] {
  const ownerRanges: RowRange[] = [];
  for (const { row, length, owner: blockOwner } of blockRows) {
    if (blockOwner !== owner) continue;
    const lastRange = ownerRanges.at(-1);
    if (lastRange && lastRange.start + lastRange.length === row)
      ownerRanges[ownerRanges.length - 1] = { ...lastRange, length: lastRange.length + length };
    else ownerRanges.push({ start: row, length });
  }
  return ownerRanges;
}

/**
 * Returns this rank's keys and values of a sequence [1,Hkv,·,·], in order of position, and the layout of the sequence
 * over all ranks.
 */
function gatherCachedKv(memory: CacheMemory, layer: number, table: BlockTable) {
  const { ctx, axis, rank } = memory;
  const [firstPosition, endPosition] = [table.firstKeptPosition, table.getLayerLength(layer)];
  const spans = (index: number): Span[] =>
    joinSpans(
      table
        .listRankRows(index, firstPosition, endPosition)
        .map(({ position, length }) => ({ start: position - firstPosition, length, step: 1 })),
    );
  const layout = layoutOf({
    mesh: ctx.mesh.shape,
    axes: [axis!],
    placement: { name: "blocks", spans },
    length: endPosition - firstPosition,
  });
  const rows = joinBlockRows(table.listRankRows(rank, firstPosition, endPosition));
  const gatherRows = (x: Tensor): Tensor => {
    const layerRows = x.slice(0, layer, layer + 1);
    const rowViews = rows.map(({ start, length }) => layerRows.slice(2, start, start + length));
    if (rowViews.length === 0) return layerRows.slice(2, 0, 0);
    return rowViews.length === 1 ? rowViews[0]! : concatenate(rowViews, 2);
  };
  return { k: gatherRows(memory.k), v: gatherRows(memory.v), layout };
}

/** Joins adjacent blocks to one range of rows. */
function joinBlockRows(blocks: readonly { readonly row: number; readonly length: number }[]): RowRange[] {
  return joinSpans(blocks.map(({ row, length }) => ({ start: row, length, step: 1 })));
}

/** Returns the mask over the keys that were not dropped. */
function restrictToKeptKeys(
  mask: Mask,
  { queries, length, table }: { queries: number; length: number; table: BlockTable },
): Mask {
  const { firstKeptPosition } = table;
  if (firstKeptPosition === 0) return mask;
  return masks.fromSlices(resolveSlices(mask, queries, length).map((slice) => shiftKeys(slice, -firstKeptPosition)));
}
