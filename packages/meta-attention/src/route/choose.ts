import { DeviceError } from "@mosaic/core";
import type { Reach } from "./reach.ts";

/** The chunks that each query chunk looks at beside itself: by batch element and query chunk, best first. */
export type Chosen = readonly (readonly (readonly number[])[])[];

/**
 * The topK best-scored chunks of every query chunk, or as many as it may look at, ties to the smaller number, from scores
 * [B,N,N]. Every rank chooses for all, from the same numbers.
 *
 * @throws DeviceError if a score is not a number.
 */
export function choose(scores: Float32Array, topK: number, { chunks, may }: Reach): Chosen {
  if (scores.some(Number.isNaN)) {
    throw new DeviceError({
      where: "HierarchicalMetaAttention: routing",
      expected: "scores that are numbers",
      received: "NaN",
      remedy: "look for NaN or infinity in the input and the parameters: training may have diverged",
    });
  }
  const everyone = Array.from({ length: chunks }, (_, j) => j);
  return Array.from({ length: scores.length / chunks ** 2 }, (_, b) =>
    everyone.map((i) => {
      const row = scores.subarray((b * chunks + i) * chunks, (b * chunks + i + 1) * chunks);
      const candidates = everyone.filter((j) => may(i, j));
      return candidates.sort((a, b) => row[b]! - row[a]! || a - b).slice(0, topK);
    }),
  );
}
