import { concatenate, type Tensor } from "@mosaic/core";
import type { Chunks } from "../chunks.ts";
import { Holder } from "../holder.ts";
import type { ChunkSummaryEncoder } from "./encoder.ts";

/** The summaries of a rank's chunks, half done: waiting for the order of the weights. */
export interface PendingSummaries extends Disposable {
  /** What the host must read; shapes as `finish` takes them. */
  readonly patterns: readonly Tensor[];
  /** The patterns' values, or null on a device that has none → [c,B,M]. */
  finish(values: readonly Float32Array[] | null): Tensor;
}

/** Begins to summarise each own chunk of x [B,S,E]: all at once if they are equally long, one after another. */
export function beginSummaries(encoder: ChunkSummaryEncoder, x: Tensor, { own }: Chunks): PendingSummaries {
  const holder = new Holder();
  const [batch, , embed] = x.shape as [number, number, number];
  const length = own[0]?.length ?? 0;
  const even = own.length > 0 && own.every((chunk, i) => chunk.length === length && chunk.offset === i * length);
  const parts = even
    ? [holder.hold(x.reshape([batch * own.length, length, embed]))]
    : own.map((chunk) => holder.hold(x.slice(1, chunk.offset, chunk.offset + chunk.length)));
  const glances = parts.map((part) => holder.hold(encoder.glance(part)));
  return {
    patterns: glances.map(({ pattern }) => pattern),
    finish(values) {
      using made = new Holder();
      const summaries = glances.map((glance, i) => made.hold(encoder.summarize(glance, values && values[i]!)));
      if (even) {
        const byBatch = made.hold(summaries[0]!.reshape([batch, own.length, encoder.summaryDim]));
        return byBatch.permute([1, 0, 2]);
      }
      if (summaries.length === 0) return x.device.empty([0, batch, encoder.summaryDim], "float32");
      return concatenate(
        summaries.map((summary) => made.hold(summary.reshape([1, batch, encoder.summaryDim]))),
        0,
      );
    },
    [Symbol.dispose]: () => holder[Symbol.dispose](),
  };
}
