import { fromArray, type Tensor } from "@mosaic/core";
import type { Chunks } from "../chunks.ts";

// Ranks gather equally much: p·c slots, of which each rank fills the first of its own. Chunks are in the order of the sequence,
// and fewer than slots where shards are short.

/** Whether slots are chunks already. */
function isOrdered({ all, ranks, perRank }: Chunks): boolean {
  return all.length === ranks * perRank && all.every(({ index, slot }) => index === slot);
}

/** Slots [p·c,B,W] → chunks [N,B,W]. */
export function chunksOfSlots(bySlot: Tensor, chunks: Chunks): Tensor {
  if (isOrdered(chunks)) return bySlot.detach();
  const [, batch, width] = bySlot.shape as [number, number, number];
  const byChunk = bySlot.device.empty([chunks.all.length, batch, width], bySlot.dtype);
  using from = rowsOf(bySlot);
  using to = rowsOf(byChunk);
  using index = slotsOf(chunks, bySlot);
  bySlot.device.kernels.gatherRows(to, from, index);
  return byChunk;
}

/** The way back: chunks [N,B,W] → slots [p·c,B,W], float32, 0 where there is no chunk. */
export function slotsOfChunks(byChunk: Tensor, chunks: Chunks): Tensor {
  const dense = byChunk.contiguous();
  if (isOrdered(chunks)) return dense;
  using rows = dense;
  const [, batch, width] = rows.shape as [number, number, number];
  const bySlot = rows.device.empty([chunks.ranks * chunks.perRank, batch, width], "float32");
  rows.device.kernels.fill(bySlot, 0);
  using from = rowsOf(rows);
  using to = rowsOf(bySlot);
  using index = slotsOf(chunks, bySlot);
  rows.device.kernels.scatterAddRows(to, from, index);
  return bySlot;
}

/** [n,B,W] as [n,B·W]. */
function rowsOf(x: Tensor): Tensor {
  const [count, batch, width] = x.shape as [number, number, number];
  return x.reshape([count, batch * width]);
}

/** The slot of each chunk. */
function slotsOf({ all }: Chunks, { device }: Tensor): Tensor {
  const slots = all.map(({ slot }) => slot);
  return fromArray(device, slots, [slots.length]);
}
