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

/** The chunks that each query chunk attends to beside itself: by batch element and query chunk, best first. */
export type ChosenChunks = readonly (readonly (readonly number[])[])[];

/**
 * The topK best-scored chunks of every query chunk, or as many as it may attend to, ties to the smaller number, from scores
 * [B,N,N]. Every rank chooses for all, from the same numbers.
 *
 * @throws DeviceError if a score is not a number.
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

/** Which chunks each chunk may be routed to: never to itself. */
export interface ChunkVisibility {
  /** How many chunks there are. */
  readonly chunks: number;
  /** Whether chunks have a before and an after: each is routed by what was before it, and never ahead. */
  readonly causal: boolean;
  /** Whether chunk i may attend to chunk j. */
  canAttend(i: number, j: number): boolean;
  /** How many chunks chunk i may attend to. */
  count(i: number): number;
}

/** Every chunk may attend to every other one, or to every one before it, if it sees any of its keys. */
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

/** [N,N]: `valueIfTrue` where the predicate is true, `valueIfFalse` elsewhere. */
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
