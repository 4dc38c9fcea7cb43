import { defineOptions, formatValue, option, OptionError, type OptionsOf } from "@mosaic/core";

export const denseToSparseOptions = defineOptions("denseToSparse", {
  /** Chunks that are chosen from step `steps` on. */
  topK: option.integer({ min: 0 }),
  /** Chunks of the sequence. */
  chunks: option.integer({ min: 1 }),
  /** Steps until `topK` is reached. */
  steps: option.integer({ min: 0 }),
});

/**
 * How many chunks to choose at a step of training: all at first, then ever fewer, as a straight line to `topK` at step
 * `steps`. Routing that begins dense gets a gradient from every chunk before it must leave some out.
 *
 * @example
 * ```ts
 * import { denseToSparse } from "@mosaic/meta-attention";
 * [0, 50, 100, 500].map((step) => denseToSparse(step, { topK: 2, chunks: 9, steps: 100 })); // => [8, 5, 2, 2]
 * ```
 */
export function denseToSparse(step: number, schedule: OptionsOf<typeof denseToSparseOptions>): number {
  const { topK, chunks, steps } = denseToSparseOptions.parse(schedule);
  if (!Number.isSafeInteger(step) || step < 0) {
    throw new OptionError({
      where: "denseToSparse",
      expected: "a step, an integer ≥ 0",
      received: formatValue(step),
    });
  }
  const all = chunks - 1;
  if (step >= steps) return topK;
  return Math.round(all + ((topK - all) * step) / steps);
}
