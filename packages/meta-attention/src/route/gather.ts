import { defineOp, type ProcessGroup, type Tensor } from "@mosaic/core";

interface Gathering {
  readonly group: ProcessGroup;
  readonly label: string;
}

const gatherOp = defineOp({
  name: "gatherSummaries",
  forward([own, keyStatistics]: [Tensor, Tensor | null], { group, label }: Gathering) {
    const [chunks, batch, size] = own.shape as [number, number, number];
    const width = size + (keyStatistics?.shape[2] ?? 0);
    using packed = own.device.empty([chunks, batch, width], own.dtype);
    for (const [part, start] of [[own, 0] as const, [keyStatistics, size] as const]) {
      if (!part) continue;
      using place = packed.slice(2, start, start + part.shape[2]!);
      own.device.kernels.copy(place, part);
    }
    const output = own.device.empty([group.size * chunks, batch, width], own.dtype);
    if (group.size === 1) own.device.kernels.copy(output, packed);
    else group.allGather(output, packed, { label }).wait();
    return { output, saved: { shape: own.shape, group, label } };
  },
  backward({ shape, group, label }, dOut) {
    using part = dOut.slice(2, 0, shape[2]);
    using dense = part.contiguous();
    const dOwn = dOut.device.empty(shape, dOut.dtype);
    if (group.size === 1) dOut.device.kernels.copy(dOwn, dense);
    else group.reduceScatter(dOwn, dense, "sum", { label }).wait();
    return [dOwn, null];
  },
});

/**
 * The summaries of all chunks, with what else is known of each, from this rank's: own [c,B,M] and statistics [c,B,W] or null
 * → [N,B,M+W]. One all-gather; the backward is a reduce-scatter of the summaries' gradient. Statistics have none.
 */
export function gatherSummaries(own: Tensor, keyStatistics: Tensor | null, gathering: Gathering): Tensor {
  return gatherOp([own, keyStatistics], gathering);
}
