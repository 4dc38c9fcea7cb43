import type { Attending } from "../attend/attending.ts";
import type { Chosen, Reach } from "../route/choose.ts";
import { type KnownKeys, worstLeftOut } from "./certificate.ts";

/**
 * Looks at as many chunks more as it takes so that no row misses more than `epsilon` of its softmax; what was looked at in the
 * end. One small all-gather, and a wait for it: every rank must know what every other one adds.
 */
export async function extend(
  attending: Attending,
  first: Chosen,
  { known, epsilon }: { known: KnownKeys; epsilon: number },
): Promise<Chosen> {
  const { chunks, group, label } = attending.plan;
  using worst = worstLeftOut(attending, first, known);
  const [batch, , count] = worst.shape as [number, number, number];
  using all = worst.device.empty([chunks.ranks, ...worst.shape], "float32");
  if (group.size === 1) worst.device.kernels.copy(all, worst);
  else group.allGather(all, worst, { label }).wait();
  const bySlot = await all.read();
  const rows = (b: number, i: number): Float32Array => {
    const { owner, slot } = chunks.all[i]!;
    const at = ((owner * batch + b) * chunks.perRank + (slot % chunks.perRank)) * count;
    return bySlot.subarray(at, at + count);
  };
  const more = chunksToAdd(rows, first, { epsilon, reach: chunks.reach });
  if (more.every((ofBatch) => ofBatch.every(({ length }) => length === 0))) return first;
  attending.look(more);
  return first.map((ofBatch, b) => ofBatch.map((chosen, i) => [...chosen, ...more[b]![i]!]));
}

/**
 * For each query chunk, those with the largest bound, until the sum over the rest is at most ε/(1 − ε). `worst(b, i)`: for each
 * chunk the largest `leftOut` over the rows of query chunk i.
 */
export function chunksToAdd(
  worst: (b: number, i: number) => ArrayLike<number>,
  chosen: Chosen,
  { epsilon, reach }: { epsilon: number; reach: Reach },
): Chosen {
  // A hair less, for the rounding of the bound that is reported.
  const limit = (epsilon / (1 - epsilon)) * (1 - 2 ** -18);
  return chosen.map((ofBatch, b) =>
    ofBatch.map((already, i) => {
      const row = worst(b, i);
      const share = (j: number): number => Math.exp(row[j]!);
      const left = Array.from({ length: reach.chunks }, (_, j) => j)
        .filter((j) => reach.may(i, j) && !already.includes(j))
        .sort((x, y) => share(x) - share(y) || y - x);
      let kept = 0;
      for (let sum = 0; kept < left.length; kept++) if (!((sum += share(left[kept]!)) <= limit)) break;
      return left.slice(kept).reverse();
    }),
  );
}
