import { masks } from "@mosaic/core";
import { placements } from "../backend/placements.ts";
import type { ModuleTrial } from "./trial.ts";

/** A few of each: masks, placements, grouped heads, unequal shards, dtypes. */
export function moduleTrials(): ModuleTrial[] {
  const [contiguous, zigzag, striped, ragged] = placements();
  const sizes = { batch: 2, length: 37, embed: 24, numHeads: 4, numKvHeads: 4, headDim: 6 };
  const grouped = { ...sizes, numKvHeads: 2, headDim: 8 };
  const plain = { sizes, dtype: "float32", useCheckpoint: false } as const;
  const documentOf = (position: number) => (position < 11 ? 0 : 1);
  return [
    { ...plain, name: "full, contiguous", mask: masks.full(), sees: () => true, placement: contiguous! },
    { ...plain, name: "causal, zigzag", mask: masks.causal(), sees: (q, k) => k <= q, placement: zigzag! },
    {
      ...plain,
      name: "window, striped, grouped heads, checkpointed",
      sizes: grouped,
      useCheckpoint: true,
      mask: masks.slidingWindow(9),
      sees: (q, k) => k <= q && k > q - 9,
      placement: striped!,
    },
    {
      ...plain,
      name: "documents, ragged, bfloat16",
      dtype: "bfloat16",
      mask: masks.documents([11, 26]),
      sees: (q, k) => documentOf(q) === documentOf(k),
      placement: ragged!,
    },
  ];
}
