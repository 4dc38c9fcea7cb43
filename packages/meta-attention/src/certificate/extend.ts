import { isAllowed } from "../route/allowed.ts";
import type { Chosen } from "../route/choose.ts";

/**
 * The chunks to add so that no row misses more than `epsilon` of its softmax: for each query chunk, those with the largest
 * bound, until the sum over the rest is at most ε/(1 − ε). `worst` [B,N,N]: the largest `leftOut` over a query chunk's rows.
 */
export function chunksToAdd(
  worst: Float32Array,
  chosen: Chosen,
  { epsilon, causal }: { epsilon: number; causal: boolean },
): Chosen {
  const count = chosen[0]?.length ?? 0;
  // A hair less, for the rounding of the bound that is reported.
  const limit = (epsilon / (1 - epsilon)) * (1 - 2 ** -18);
  return chosen.map((ofBatch, b) =>
    ofBatch.map((already, i) => {
      const share = (j: number): number => Math.exp(worst[(b * count + i) * count + j]!);
      const left = Array.from({ length: count }, (_, j) => j)
        .filter((j) => isAllowed(i, j, causal) && !already.includes(j))
        .sort((x, y) => share(x) - share(y) || y - x);
      let kept = 0;
      for (let sum = 0; kept < left.length; kept++) if (!((sum += share(left[kept]!)) <= limit)) break;
      return left.slice(kept).reverse();
    }),
  );
}

/** Both choices together. */
export function joined(first: Chosen, second: Chosen): Chosen {
  return first.map((ofBatch, b) => ofBatch.map((chunks, i) => [...chunks, ...second[b]![i]!]));
}
