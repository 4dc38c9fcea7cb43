import { type Context, DeviceError, fromArray, type Tensor } from "@mosaic/core";

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

/** Which chunks each chunk may be routed to: never to itself. */
export interface Reach {
  /** How many chunks there are. */
  readonly chunks: number;
  /** Whether chunks have a before and an after: each is routed by what was before it, and never ahead. */
  readonly causal: boolean;
  /** Whether chunk i may look at chunk j. */
  may(i: number, j: number): boolean;
  /** How many chunks chunk i may look at. */
  count(i: number): number;
}

/** Every chunk may look at every other one, or at every one before it, if it sees any of its keys. */
export function reachAmong(
  chunks: number,
  { causal, sees = () => true }: { causal: boolean; sees?: (i: number, j: number) => boolean },
): Reach {
  const may = Uint8Array.from({ length: chunks * chunks }, (_, at) => {
    const [i, j] = [Math.floor(at / chunks), at % chunks];
    return (causal ? j < i : j !== i) && sees(i, j) ? 1 : 0;
  });
  const counts = Array.from({ length: chunks }, (_, i) =>
    may.subarray(i * chunks, (i + 1) * chunks).reduce((sum, yes) => sum + yes, 0),
  );
  return {
    chunks,
    causal,
    may: (i, j) => may[i * chunks + j] === 1,
    count: (i) => counts[i]!,
  };
}

/** [N,N]: `yes` where the rule holds, `no` elsewhere. */
export function pairs(
  ctx: Context,
  chunks: number,
  { rule, yes, no }: { rule: (i: number, j: number) => boolean; yes: number; no: number },
): Tensor {
  const values = Float32Array.from({ length: chunks * chunks }, (_, at) =>
    rule(Math.floor(at / chunks), at % chunks) ? yes : no,
  );
  return fromArray(ctx, values, [chunks, chunks]);
}
