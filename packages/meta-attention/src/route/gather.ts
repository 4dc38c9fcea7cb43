import { defineOp, fromArray, type ProcessGroup, type Tensor } from "@mosaic/core";
import type { Chunks } from "../chunks.ts";

interface Gathering {
  readonly chunks: Chunks;
  readonly group: ProcessGroup;
  readonly label: string;
}

const gatherOp = defineOp({
  name: "gatherSummaries",
  forward([own, keyStatistics]: readonly (Tensor | null)[], { chunks, group, label }: Gathering) {
    const [count, batch, size] = own!.shape as [number, number, number];
    const { device, dtype } = own!;
    const width = size + (keyStatistics?.shape[2] ?? 0);
    using packed = device.empty([chunks.perRank, batch, width], dtype);
    // Places without a chunk are sent as well: they must hold numbers.
    if (count < chunks.perRank) device.kernels.fill(packed, 0);
    for (const [part, start] of [[own!, 0] as const, [keyStatistics ?? null, size] as const]) {
      if (!part || count === 0) continue;
      using places = packed.slice(0, 0, count);
      using place = places.slice(2, start, start + part.shape[2]!);
      device.kernels.copy(place, part);
    }
    using bySlot = device.empty([group.size * chunks.perRank, batch, width], dtype);
    if (group.size === 1) device.kernels.copy(bySlot, packed);
    else group.allGather(bySlot, packed, { label }).wait();
    return { output: inOrder(bySlot, chunks), saved: { shape: own!.shape, chunks, group, label } };
  },
  backward({ shape, chunks, group, label }, dOut) {
    const { device } = dOut;
    const [count, batch, size] = shape as [number, number, number];
    using part = dOut.slice(2, 0, size);
    using bySlot = backInSlots(part, { chunks, ranks: group.size });
    using packed = device.empty([chunks.perRank, batch, size], dOut.dtype);
    if (group.size === 1) device.kernels.copy(packed, bySlot);
    else group.reduceScatter(packed, bySlot, "sum", { label }).wait();
    return [packed.slice(0, 0, count)];
  },
});

/** Whether chunks are gathered in the order of the sequence, and no place is empty. */
function isOrdered({ all, ranks, perRank }: Chunks): boolean {
  return all.length === ranks * perRank && all.every(({ index, slot }) => index === slot);
}

/** Slots [p·c,B,W] → chunks [N,B,W]. */
function inOrder(bySlot: Tensor, chunks: Chunks): Tensor {
  if (isOrdered(chunks)) return bySlot.detach();
  const [slots, batch, width] = bySlot.shape as [number, number, number];
  const ordered = bySlot.device.empty([chunks.all.length, batch, width], bySlot.dtype);
  using from = bySlot.reshape([slots, batch * width]);
  using to = ordered.reshape([chunks.all.length, batch * width]);
  using index = slotsOf(bySlot, chunks);
  bySlot.device.kernels.gatherRows(to, from, index);
  return ordered;
}

/** Chunks [N,B,M] → slots [p·c,B,M], 0 where there is no chunk. */
function backInSlots(byChunk: Tensor, { chunks, ranks }: { chunks: Chunks; ranks: number }): Tensor {
  const dense = byChunk.contiguous();
  if (isOrdered(chunks)) return dense;
  using ordered = dense;
  const [count, batch, size] = ordered.shape as [number, number, number];
  const { device } = ordered;
  const bySlot = device.empty([ranks * chunks.perRank, batch, size], "float32");
  device.kernels.fill(bySlot, 0);
  using from = ordered.reshape([count, batch * size]);
  using to = bySlot.reshape([ranks * chunks.perRank, batch * size]);
  using index = slotsOf(ordered, chunks);
  device.kernels.scatterAddRows(to, from, index);
  return bySlot;
}

function slotsOf({ device }: Tensor, { all }: Chunks): Tensor {
  return fromArray(
    device,
    all.map(({ slot }) => slot),
    [all.length],
  );
}

/** What a rank gives to the gather. */
export interface Gathered {
  /** Summaries of this rank's chunks [c,B,M]. */
  readonly summaries: Tensor;
  /** Where their keys lie [c,B,W]; null if nobody asks. Has no gradient. */
  readonly keyStatistics: Tensor | null;
  /** What summaries are made of. A rank without a chunk has made none of it, and must take part in the backward all the same. */
  readonly madeOf: readonly Tensor[];
}

/**
 * The summaries of all chunks, with what else is known of each → [N,B,M+W], in the order of the sequence. One all-gather; the
 * backward is a reduce-scatter of the summaries' gradient.
 */
export function gatherSummaries({ summaries, keyStatistics, madeOf }: Gathered, gathering: Gathering): Tensor {
  return gatherOp([summaries, keyStatistics, ...madeOf], gathering);
}
