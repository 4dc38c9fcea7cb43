import { type DType, masks } from "@mosaic/core";
import { expect, test } from "vitest";
import { dtypes, generator, onEveryIsa, type Sample, sample } from "./sample.ts";

const [heads, kvHeads, keys, headDim] = [6, 2, 2500, 24];
const scale = 1 / Math.sqrt(headDim);

/** Largest errors relative to the largest value: of sums in float32, and of weights that are rounded to bfloat16. */
const tolerances: Readonly<Record<DType, number>> = { float32: 1e-5, bfloat16: 2 ** -8, float16: 1e-5 };

// Few queries: heads of a group are rows of one panel, and 2 500 keys are read in parts whose states are merged.
onEveryIsa("few queries, many keys", (device) => {
  const cases = dtypes.flatMap((dtype) => [1, 3, 16, 20].map((queries) => [queries, dtype] as const));
  test.each(cases)("%d queries in %s see the keys up to their own", async (queries, dtype) => {
    const random = generator(queries);
    const draw = (numHeads: number, length: number): Sample =>
      sample(device(), [1, numHeads, length, headDim], { dtype, value: random });
    const [q, k, v] = [draw(heads, queries), draw(kvHeads, keys), draw(kvHeads, keys)];
    using out = device().empty([1, heads, queries, headDim], "float32");
    using lse = device().empty([1, heads, queries], "float32");
    device().kernels.fill(lse, Number.NEGATIVE_INFINITY);
    const first = keys - queries;
    device().kernels.attend(
      { out, lse },
      q.x,
      { k: k.x, v: v.x },
      {
        q: [{ start: first, length: queries, step: 1 }],
        k: [{ start: 0, length: keys, step: 1 }],
        mask: masks.causal().slices(keys, keys),
        scale,
      },
    );
    const [gotOut, gotLse] = [await out.read(), await lse.read()];
    for (const [row, lseAt] of gotLse.entries()) {
      const head = Math.floor(row / queries);
      const seen = first + (row % queries) + 1;
      const expected = reference(q.values.slice(row * headDim, (row + 1) * headDim), k, v, {
        kvHead: Math.floor((head * kvHeads) / heads),
        seen,
      });
      expect(Math.abs(lseAt - expected.lse)).toBeLessThan(1e-5);
      const largest = Math.max(...expected.out.map(Math.abs));
      for (const [d, want] of expected.out.entries()) {
        expect(Math.abs(gotOut[row * headDim + d]! - want)).toBeLessThan(tolerances[dtype] * largest);
      }
    }
    for (const { x } of [q, k, v]) x[Symbol.dispose]();
  });
});

/** One row of attention in float64. */
function reference(
  q: readonly number[],
  k: Sample,
  v: Sample,
  { kvHead, seen }: { kvHead: number; seen: number },
): { out: number[]; lse: number } {
  const at = (j: number): number => (kvHead * keys + j) * headDim;
  const scores = Array.from({ length: seen }, (_, j) =>
    q.reduce((sum, x, d) => sum + x * k.values[at(j) + d]! * scale, 0),
  );
  const highest = Math.max(...scores);
  const weights = scores.map((score) => Math.exp(score - highest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const out = q.map((_, d) => weights.reduce((sum, weight, j) => sum + (weight / total) * v.values[at(j) + d]!, 0));
  return { out, lse: highest + Math.log(total) };
}
