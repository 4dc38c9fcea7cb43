import { defineOp, type ProcessGroup, type Tensor } from "@mosaic/core";
import type { Chunks } from "../chunks.ts";
import { chunksOfSlots, slotsOfChunks } from "./slots.ts";

// p ranks, c places for chunks on each, N chunks; B batch, M length of a summary, W numbers that tell where keys lie.

/** What a rank gives to the gather. */
export interface Gathered {
  /** Summaries of this rank's chunks, at most c: [n,B,M]. */
  readonly summaries: Tensor;
  /** Where their keys lie [n,B,W]; null if nobody asks. Has no gradient. */
  readonly keyStatistics: Tensor | null;
  /** What summaries are made of. A rank without a chunk has made none of it, and takes part in the backward all the same. */
  readonly madeOf: readonly Tensor[];
}

interface Gathering {
  readonly chunks: Chunks;
  readonly group: ProcessGroup;
  readonly label: string;
}

const gatherOp = defineOp({
  name: "gatherSummaries",
  forward([own, keyStatistics]: readonly (Tensor | null)[], { chunks, group, label }: Gathering) {
    using packed = packedPlaces(own!, keyStatistics ?? null, chunks);
    using bySlot = packed.device.empty(packed.shape.with(0, group.size * chunks.perRank), packed.dtype);
    if (group.size === 1) packed.device.kernels.copy(bySlot, packed);
    else group.allGather(bySlot, packed, { label }).wait();
    return { output: chunksOfSlots(bySlot, chunks), saved: { shape: own!.shape, chunks, group, label } };
  },
  backward({ shape, chunks, group, label }, dOut) {
    const [count, , size] = shape as [number, number, number];
    using part = dOut.slice(2, 0, size);
    using bySlot = slotsOfChunks(part, chunks);
    using places = dOut.device.empty(bySlot.shape.with(0, chunks.perRank), dOut.dtype);
    if (group.size === 1) dOut.device.kernels.copy(places, bySlot);
    else group.reduceScatter(places, bySlot, "sum", { label }).wait();
    return [places.slice(0, 0, count)];
  },
});

/** Summaries and statistics side by side, [c,B,M+W]; zeros where there is no chunk, as these places are sent as well. */
function packedPlaces(summaries: Tensor, keyStatistics: Tensor | null, { perRank }: Chunks): Tensor {
  const { device, dtype } = summaries;
  const [count, batch, size] = summaries.shape as [number, number, number];
  const packed = device.empty([perRank, batch, size + (keyStatistics?.shape[2] ?? 0)], dtype);
  if (count < perRank) device.kernels.fill(packed, 0);
  if (count === 0) return packed;
  using places = packed.slice(0, 0, count);
  using first = places.slice(2, 0, size);
  using rest = places.slice(2, size);
  device.kernels.copy(first, summaries);
  if (keyStatistics) device.kernels.copy(rest, keyStatistics);
  return packed;
}

/**
 * The summaries of all chunks, with what else is known of each → [N,B,M+W], in the order of the sequence. One all-gather; the
 * backward is a reduce-scatter of the summaries' gradient.
 */
export function gatherSummaries({ summaries, keyStatistics, madeOf }: Gathered, gathering: Gathering): Tensor {
  return gatherOp([summaries, keyStatistics, ...madeOf], gathering);
}
