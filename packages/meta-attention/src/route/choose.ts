import {
  type Context,
  defineOptions,
  DeviceError,
  formatValue,
  fromArray,
  option,
  OptionError,
  type OptionsOf,
  type Tensor,
} from "@mosaic/core";

export const denseToSparseOptions = defineOptions("denseToSparse", {
  /** Number of chunks that are chosen from step `steps` on. */
  topK: option.integer({ min: 0 }),
  /** Number of chunks of the sequence. */
  chunks: option.integer({ min: 1 }),
  /** Number of steps until `topK` is reached. */
  steps: option.integer({ min: 0 }),
});

/**
 * Returns the number of chunks to choose in a step of training: it decreases linearly from all other chunks at step 0
 * to `topK` at step `steps`. With a dense start, the router receives a gradient from every chunk before chunks are left
 * out.
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
      expected: "an integer step ≥ 0",
      received: formatValue(step),
    });
  }
  const maxTopK = chunks - 1;
  if (topK > maxTopK) {
    throw new OptionError({
      where: "denseToSparse",
      expected: `topK from 0 to ${maxTopK}, the number of other chunks`,
      received: String(topK),
    });
  }
  if (step >= steps) return topK;
  return Math.round(maxTopK + ((topK - maxTopK) * step) / steps);
}

/** The other chunks that each query chunk attends to, by batch element and query chunk, best first. */
export type ChosenChunks = readonly (readonly (readonly number[])[])[];

/**
 * Returns the topK chunks with the highest scores [B,N,N] for every query chunk, or all that it may attend to if these
 * are fewer. Ties go to the smaller index. Every rank chooses for all ranks, from the same scores.
 *
 * @throws DeviceError if a score is NaN.
 */
export function chooseTopK(scores: Float32Array, topK: number, { chunks, canAttend }: ChunkVisibility): ChosenChunks {
  if (scores.some(Number.isNaN)) {
    throw new DeviceError({
      where: "HierarchicalMetaAttention: routing",
      expected: "scores without NaN",
      received: "NaN",
      remedy: "check the input and the parameters for NaN or infinity: training may have diverged",
    });
  }
  const allChunks = Array.from({ length: chunks }, (_, j) => j);
  return Array.from({ length: scores.length / chunks ** 2 }, (_, b) =>
    allChunks.map((i) => {
      const row = scores.subarray((b * chunks + i) * chunks, (b * chunks + i + 1) * chunks);
      const candidates = allChunks.filter((j) => canAttend(i, j));
      return candidates.sort((a, b) => row[b]! - row[a]! || a - b).slice(0, topK);
    }),
  );
}

/** The chunks to which each chunk may be routed, never including itself. */
export interface ChunkVisibility {
  /** Number of chunks. */
  readonly chunks: number;
  /** Whether each chunk is routed by the tokens before it, and only to earlier chunks. */
  readonly causal: boolean;
  /** Returns whether chunk i may attend to chunk j. */
  canAttend(i: number, j: number): boolean;
  /** Returns the number of chunks that chunk i may attend to. */
  count(i: number): number;
}

/**
 * Creates the visibility in which every chunk may attend to every other chunk, or to every earlier one if causal,
 * provided that the mask allows the pair.
 */
export function chunkVisibility(
  chunks: number,
  { causal, maskAllows = () => true }: { causal: boolean; maskAllows?: (i: number, j: number) => boolean },
): ChunkVisibility {
  const allowedFlags = Uint8Array.from({ length: chunks * chunks }, (_, pairIndex) => {
    const [i, j] = [Math.floor(pairIndex / chunks), pairIndex % chunks];
    return (causal ? j < i : j !== i) && maskAllows(i, j) ? 1 : 0;
  });
  const allowedCounts = Array.from({ length: chunks }, (_, i) =>
    allowedFlags.subarray(i * chunks, (i + 1) * chunks).reduce((sum, flag) => sum + flag, 0),
  );
  return {
    chunks,
    causal,
    canAttend: (i, j) => allowedFlags[i * chunks + j] === 1,
    count: (i) => allowedCounts[i]!,
  };
}

/** Returns [N,N]: `valueIfTrue` where the predicate is true, `valueIfFalse` elsewhere. */
export function createPairMask(
  ctx: Context,
  chunks: number,
  {
    predicate,
    valueIfTrue,
    valueIfFalse,
  }: { predicate: (i: number, j: number) => boolean; valueIfTrue: number; valueIfFalse: number },
): Tensor {
  const values = Float32Array.from({ length: chunks * chunks }, (_, pairIndex) =>
    predicate(Math.floor(pairIndex / chunks), pairIndex % chunks) ? valueIfTrue : valueIfFalse,
  );
  return fromArray(ctx, values, [chunks, chunks]);
}
