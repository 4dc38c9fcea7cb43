import type { DType, Slice } from "@mosaic/core";
import { expect, test } from "vitest";
import { createGenerator, createSample, dtypes, findMismatch, type Layout, onEveryIsa, type Sample } from "./sample.ts";

const [queries, keys, depth] = [4, 563, 32];

/** Largest errors for values in [-1, 1): of float32 sums, and of weights that are rounded to bfloat16. */
const tolerances: Readonly<Record<DType, number>> = { float32: 1e-5, bfloat16: 2 ** -8, float16: 1e-5 };

const full = (k0: number, k1: number): Slice => ({ q0: 0, q1: queries, k0, k1, type: "full" });
/** The last query attends to keys [k0, k1), each query before it to one key less. */
const causal = (k0: number, k1: number): Slice => ({ q0: 0, q1: queries, k0, k1, type: "causal" });

/**
 * One mask per sample. Blocks in the middle are visible to every query. The first sample begins and ends within a
 * block; the second has an odd number of keys, all visible; a diagonal is in the last block of the third.
 */
const sampleMasks: readonly (readonly Slice[])[] = [[full(37, 531)], [full(0, keys)], [causal(0, 520)]];
const diagonal = { sample: 2, key: 519 }; // visible to the last query only

function isVisible({ k0, k1, type }: Slice, query: number, key: number): boolean {
  return key >= k0 && key < (type === "causal" ? k1 - (queries - 1 - query) : k1);
}

// 4 and 8 heads of a key head fill a panel of one vector or of two with AVX-512, 16 heads two panels of two vectors.
// Values of 48 columns are not whole vectors of bfloat16 pairs.
onEveryIsa("attention of a few queries to samples of different lengths", (device) => {
  const shapes = [
    [4, 96],
    [4, 48],
    [8, 64],
    [16, 32],
  ] as const;
  const cases = dtypes.flatMap((dtype) => shapes.map((shape) => [...shape, dtype] as const));
  test.each(cases)(
    "computes %d heads with values of %d in %s, and propagates NaN only to queries that attend to it",
    async (heads, valueDepth, dtype) => {
      const random = createGenerator(heads + valueDepth);
      const batch = sampleMasks.length;
      const drawSample = (shape: readonly number[]): Sample => createSample(device(), shape, { dtype, value: random });
      const q = drawSample([batch, heads, queries, depth]);
      const [k, v] = [drawSample([batch, 1, keys, depth]), drawSample([batch, 1, keys, valueDepth])];
      const poison = ({ x }: Sample, sample: number, from: number, to: number): void => {
        if (from === to) return;
        using ofSample = x.slice(0, sample, sample + 1);
        using rows = ofSample.slice(2, from, to);
        device().kernels.fill(rows, Number.NaN);
      };
      for (const [sample, [slice]] of sampleMasks.entries()) {
        for (const each of [k, v]) {
          poison(each, sample, 0, slice!.k0);
          poison(each, sample, slice!.k1, keys);
        }
      }
      poison(v, diagonal.sample, diagonal.key, diagonal.key + 1);
      using out = device().empty([batch, heads, queries, valueDepth], "float32");
      using lse = device().empty([batch, heads, queries], "float32");
      device().kernels.fill(lse, Number.NEGATIVE_INFINITY);
      const spans = (length: number) => [{ start: 0, length, step: 1 }];
      const tile = { q: spans(queries), k: spans(keys), mask: [], scale: 1, modifiers: { sampleMasks } };
      device().kernels.attend({ out, lse }, q.x, { k: k.x, v: v.x }, tile);
      const expectedOut: number[] = [];
      const expectedLse: number[] = [];
      for (let row = 0; row < batch * heads * queries; row++) {
        const [sample, query] = [Math.floor(row / (heads * queries)), row % queries];
        const expected = reference(row, sample, query, { q, k, v, valueDepth });
        expectedLse.push(expected.lse);
        const isPoisoned = sample === diagonal.sample && query === queries - 1;
        expectedOut.push(...expected.out.map((x) => (isPoisoned ? Number.NaN : x)));
      }
      const compare = (actual: Float32Array, expected: readonly number[], tolerance: number) =>
        expect(findMismatch(actual, expected, { tolerance, magnitude: expected.map(() => 1) })).toBeUndefined();
      compare(await lse.read(), expectedLse, 1e-5);
      compare(await out.read(), expectedOut, tolerances[dtype]);
      for (const { x } of [q, k, v]) x[Symbol.dispose]();
    },
  );
});

// Rows of V with unit stride are read in place. V with another stride is copied, and read by columns.
onEveryIsa("attention of a few queries to values of any layout", (device) => {
  test.each(dtypes)("has the same bits in %s", async (dtype) => {
    // The scalar kernels fold 16 rows of dense 16-bit keys and values with lanes along the keys, in another order.
    for (const heads of device().instructionSet === "scalar" ? [8, 16] : [4, 8, 16]) {
      const random = createGenerator(heads);
      const drawSample = (shape: readonly number[], layout: Layout): Sample =>
        createSample(device(), shape, { dtype, value: random, layout });
      const [q, k] = [
        [1, heads, queries, depth],
        [1, 1, keys, depth],
      ].map((shape) => drawSample(shape, "dense"));
      const results: Float32Array[] = [];
      for (const layout of ["dense", "turned"] as const) {
        const values = createGenerator(1);
        const v = createSample(device(), [1, 1, keys, 96], { dtype, value: values, layout });
        using out = device().empty([1, heads, queries, 96], "float32");
        using lse = device().empty([1, heads, queries], "float32");
        device().kernels.fill(lse, Number.NEGATIVE_INFINITY);
        const spans = (length: number) => [{ start: 0, length, step: 1 }];
        const tile = { q: spans(queries), k: spans(keys), mask: [full(0, keys)], scale: 1 };
        device().kernels.attend({ out, lse }, q!.x, { k: k!.x, v: v.x }, tile);
        results.push(await out.read());
        v.x[Symbol.dispose]();
      }
      expect(results[1]).toEqual(results[0]);
      for (const { x } of [q!, k!]) x[Symbol.dispose]();
    }
  });
});

/** Computes one row of attention in float64. */
function reference(
  row: number,
  sample: number,
  query: number,
  { q, k, v, valueDepth }: { q: Sample; k: Sample; v: Sample; valueDepth: number },
): { out: number[]; lse: number } {
  const slice = sampleMasks[sample]![0]!;
  const out = Array.from({ length: valueDepth }, () => 0);
  let total = 0;
  // Scores are below 32 for elements in [-1, 1), so that their exponentials are finite without a maximum.
  for (let j = 0; j < keys; j++) {
    if (!isVisible(slice, query, j)) continue;
    const key = sample * keys + j;
    let score = 0;
    for (let d = 0; d < depth; d++) score += q.values[row * depth + d]! * k.values[key * depth + d]!;
    const weight = Math.exp(score);
    total += weight;
    for (let d = 0; d < valueDepth; d++) out[d]! += weight * v.values[key * valueDepth + d]!;
  }
  return { out: out.map((x) => x / total), lse: Math.log(total) };
}
