import { type DType, masks } from "@mosaic/core";
import { expect, test } from "vitest";
import { dtypes, createGenerator, onEveryIsa, type Sample, createSample } from "./sample.ts";

const [heads, kvHeads, keys, headDim] = [6, 2, 2500, 24];
const scale = 1 / Math.sqrt(headDim);

/** Largest errors relative to the largest value, for float32 sums and for weights that are rounded to bfloat16. */
const tolerances: Readonly<Record<DType, number>> = { float32: 1e-5, bfloat16: 2 ** -8, float16: 1e-5 };

// Few queries: heads of a group are rows of one panel, and 2 500 keys are split into parts whose states are merged.
onEveryIsa("attention of few queries to many keys", (device) => {
  const cases = dtypes.flatMap((dtype) => [1, 3, 16, 20].map((queries) => [queries, dtype] as const));
  test.each(cases)(
    "computes %d queries in %s that attend to the keys up to their positions",
    async (queries, dtype) => {
      const random = createGenerator(queries);
      const drawSample = (numHeads: number, length: number): Sample =>
        createSample(device(), [1, numHeads, length, headDim], { dtype, value: random });
      const [q, k, v] = [drawSample(heads, queries), drawSample(kvHeads, keys), drawSample(kvHeads, keys)];
      using out = device().empty([1, heads, queries, headDim], "float32");
      using lse = device().empty([1, heads, queries], "float32");
      device().kernels.fill(lse, Number.NEGATIVE_INFINITY);
      const firstPosition = keys - queries;
      device().kernels.attend(
        { out, lse },
        q.x,
        { k: k.x, v: v.x },
        {
          q: [{ start: firstPosition, length: queries, step: 1 }],
          k: [{ start: 0, length: keys, step: 1 }],
          mask: masks.causal().slices(keys, keys),
          scale,
        },
      );
      const [actualOut, actualLse] = [await out.read(), await lse.read()];
      for (const [row, lseAt] of actualLse.entries()) {
        const head = Math.floor(row / queries);
        const numVisible = firstPosition + (row % queries) + 1;
        const expected = reference(q.values.slice(row * headDim, (row + 1) * headDim), k, v, {
          kvHead: Math.floor((head * kvHeads) / heads),
          seen: numVisible,
        });
        expect(Math.abs(lseAt - expected.lse)).toBeLessThan(1e-5);
        const maxMagnitude = Math.max(...expected.out.map(Math.abs));
        for (const [d, expectedValue] of expected.out.entries()) {
          expect(Math.abs(actualOut[row * headDim + d]! - expectedValue)).toBeLessThan(
            tolerances[dtype] * maxMagnitude,
          );
        }
      }
      for (const { x } of [q, k, v]) x[Symbol.dispose]();
    },
  );
});

const spans = (length: number) => [{ start: 0, length, step: 1 }];

// A single query is folded with lanes along the keys if heads fill whole vectors, as heads of 64 and 224 do on every
// instruction set. Keys of 224 are transposed in parts, the last of which is shorter. 13 heads take passes of
// each size.
onEveryIsa("attention of one query", (device) => {
  const [count, numVisible] = [700, 333];

  const groups = dtypes.flatMap((dtype) =>
    (
      [
        [1, 64],
        [2, 64],
        [3, 64],
        [4, 224],
        [13, 64],
      ] as const
    ).map(([group, size]) => [group, size, dtype] as const),
  );
  test.each(groups)(
    "computes %d heads of %d per key head in %s with large scores, and ignores NaN in masked keys",
    async (group, size, dtype) => {
      const random = createGenerator(group);
      const drawSample = (numHeads: number, length: number): Sample =>
        createSample(device(), [1, numHeads, length, size], { dtype, value: () => 40 * random() });
      const [q, k, v] = [drawSample(group, 1), drawSample(1, count), drawSample(1, count)];
      for (const { x } of [k, v]) {
        using hiddenRows = x.slice(2, numVisible);
        device().kernels.fill(hiddenRows, Number.NaN);
      }
      using out = device().empty([1, group, 1, size], "float32");
      using lse = device().empty([1, group, 1], "float32");
      device().kernels.fill(lse, Number.NEGATIVE_INFINITY);
      const attendKeys = (firstKey: number, endKey: number): void => {
        const mask = [{ q0: 0, q1: 1, k0: firstKey, k1: endKey, type: "full" }] as const;
        const tile = { q: spans(1), k: spans(count), mask, scale: 1 };
        device().kernels.attend({ out, lse }, q.x, { k: k.x, v: v.x }, tile);
      };
      attendKeys(5, 200);
      attendKeys(200, numVisible); // merges into the existing state
      const [actualOut, actualLse] = [await out.read(), await lse.read()];
      for (let head = 0; head < group; head++) {
        const row = q.values.slice(head * size, (head + 1) * size);
        const score = (j: number) => row.reduce((sum, x, d) => sum + x * k.values[j * size + d]!, 0);
        const scores = Array.from({ length: numVisible - 5 }, (_, j) => score(j + 5));
        const maxScore = Math.max(...scores);
        const weights = scores.map((each) => Math.exp(each - maxScore));
        const total = weights.reduce((sum, weight) => sum + weight, 0);
        // Scores reach 10⁴ and more, so a float32 score has errors in its last digits.
        expect(Math.abs(actualLse[head]! - (maxScore + Math.log(total)))).toBeLessThan(maxScore * 2 ** -20);
        for (let d = 0; d < size; d++) {
          const expectedValue = weights.reduce(
            (sum, weight, j) => sum + (weight / total) * v.values[(j + 5) * size + d]!,
            0,
          );
          const roundingError = dtype === "bfloat16" ? 40 * 2 ** -8 : 0;
          expect(Math.abs(actualOut[head * size + d]! - expectedValue)).toBeLessThan(
            40 * maxScore * 2 ** -20 + roundingError,
          );
        }
      }
      for (const { x } of [q, k, v]) x[Symbol.dispose]();
    },
  );

  // If a score of 10⁹ is rounded differently than in the backward, it differs by 64, and its weight there by e^64.
  const sizes = dtypes.flatMap((dtype) => [64, 224].map((size) => [size, dtype] as const));
  test.each(sizes)(
    "computes the same scores for heads of %d as the backward pass in %s, to the last bit",
    async (size, dtype) => {
      const random = createGenerator(9);
      const drawSample = (length: number, factor: number): Sample =>
        createSample(device(), [1, 1, length, size], { dtype, value: () => factor * random() });
      const trials = 40;
      const querySize = dtype === "float16" ? 1e4 : 1e5; // float16 ends at 65 504
      const [q, k, dOut] = [drawSample(trials, querySize), drawSample(count, 1e4), drawSample(1, 1)];
      using out = device().empty([1, 1, 1, size], "float32");
      using lse = device().empty([1, 1, 1], "float32");
      using delta = device().empty([1, 1, 1], "float32");
      const tile = { q: spans(1), k: spans(count), mask: masks.full().slices(1, count), scale: 0.7 };
      for (let trial = 0; trial < trials; trial++) {
        using row = q.x.slice(2, trial, trial + 1);
        device().kernels.fill(lse, Number.NEGATIVE_INFINITY);
        device().kernels.attend({ out, lse }, row, { k: k.x, v: k.x }, tile);
        using dq = device().empty([1, 1, 1, size], "float32");
        using dk = device().empty([1, 1, count, size], "float32");
        using dv = device().empty([1, 1, count, size], "float32");
        for (const gradient of [dq, dk, dv]) device().kernels.fill(gradient, 0);
        device().kernels.rowDot(delta, dOut.x, out);
        device().kernels.attendBackward({ dq, dk, dv }, row, { dOut: dOut.x, lse, delta }, { k: k.x, v: k.x }, tile);
        // One weight is 1 and the others are 0, so dv equals dOut in that row.
        const actual = await dv.read();
        for (let d = 0; d < size; d++) {
          let sum = 0;
          for (let j = 0; j < count; j++) sum += actual[j * size + d]!;
          expect(sum).toBeCloseTo(dOut.values[d]!, 5);
        }
      }
      for (const { x } of [q, k, dOut]) x[Symbol.dispose]();
    },
  );
});

// Keys that are visible to all queries are folded for all of them at once, other keys query by query.
onEveryIsa("attention of few queries with a window", (device) => {
  const [group, queries, size, count] = [2, 3, 64, 700];

  test.each(dtypes)("propagates NaN of a key in %s only to the query that attends to it", async (dtype) => {
    const random = createGenerator(17);
    const drawSample = (numHeads: number, length: number): Sample =>
      createSample(device(), [1, numHeads, length, size], { dtype, value: random });
    const [q, k, v] = [drawSample(group, queries), drawSample(1, count), drawSample(1, count)];
    const firstKey = 5;
    const visibleCount = 330;
    for (const { x } of [k, v]) {
      for (const [from, to] of [
        [0, firstKey + 1], // the last of these keys is visible to query 0
        [firstKey + visibleCount + 2, count],
      ] as const) {
        using hiddenRows = x.slice(2, from, to);
        device().kernels.fill(hiddenRows, Number.NaN);
      }
    }
    using out = device().empty([1, group, queries, size], "float32");
    using lse = device().empty([1, group, queries], "float32");
    device().kernels.fill(lse, Number.NEGATIVE_INFINITY);
    // Query i attends to keys [5 + i, 335 + i).
    const keyRange = { k0: firstKey, k1: firstKey + visibleCount + queries - 1 };
    const mask = [{ q0: 0, q1: queries, ...keyRange, type: "bidirectionalCausal" }] as const;
    const tile = { q: spans(queries), k: spans(count), mask, scale: 1 };
    device().kernels.attend({ out, lse }, q.x, { k: k.x, v: v.x }, tile);
    const [actualOut, actualLse] = [await out.read(), await lse.read()];
    for (const [row, lseAt] of actualLse.entries()) {
      const query = row % queries;
      const actual = actualOut.slice(row * size, (row + 1) * size);
      if (query === 0) {
        expect([lseAt, ...actual].every(Number.isNaN)).toBe(true);
        continue;
      }
      const scores = Array.from({ length: visibleCount }, (_, j) =>
        actual.reduce(
          (sum, _x, d) => sum + q.values[row * size + d]! * k.values[(firstKey + query + j) * size + d]!,
          0,
        ),
      );
      const maxScore = Math.max(...scores);
      const weights = scores.map((score) => Math.exp(score - maxScore));
      const total = weights.reduce((sum, weight) => sum + weight);
      expect(Math.abs(lseAt - (maxScore + Math.log(total)))).toBeLessThan(1e-5);
      for (const [d, value] of actual.entries()) {
        const expectedValue = weights.reduce(
          (sum, weight, j) => sum + (weight / total) * v.values[(firstKey + query + j) * size + d]!,
          0,
        );
        expect(Math.abs(value - expectedValue)).toBeLessThan(tolerances[dtype]);
      }
    }
    for (const { x } of [q, k, v]) x[Symbol.dispose]();
  });
});

// Rows of several heads fill a narrow panel, one medium panel, two of them, or wide ones and a medium one, depending on
// the instruction set. Blocks that all queries see are converted as they are read, two vectors of bfloat16 values at a
// time; heads of 40 and 48 are an odd number of vectors with AVX2 and AVX-512. The last visible block is copied.
onEveryIsa("attention of a few queries whose heads share keys", (device) => {
  const [count, numVisible] = [700, 690];
  const shapes = [
    [2, 4, 64],
    [2, 4, 40],
    [4, 4, 64],
    [4, 4, 48],
    [8, 4, 64],
    [8, 4, 48],
    [4, 16, 64],
    [8, 16, 64],
  ] as const;
  const cases = dtypes.flatMap((dtype) => shapes.map((shape) => [...shape, dtype] as const));
  test.each(cases)("computes %d heads with %d queries of %d in %s, and ignores NaN in masked keys", async (...args) => {
    const [group, queries, size, dtype] = args;
    const random = createGenerator(group * queries);
    const drawSample = (numHeads: number, length: number): Sample =>
      createSample(device(), [1, numHeads, length, size], { dtype, value: random });
    const [q, k, v] = [drawSample(group, queries), drawSample(1, count), drawSample(1, count)];
    for (const { x } of [k, v]) {
      using hiddenRows = x.slice(2, numVisible);
      device().kernels.fill(hiddenRows, Number.NaN);
    }
    using out = device().empty([1, group, queries, size], "float32");
    using lse = device().empty([1, group, queries], "float32");
    device().kernels.fill(lse, Number.NEGATIVE_INFINITY);
    const mask = [{ q0: 0, q1: queries, k0: 0, k1: numVisible, type: "full" }] as const;
    const tile = { q: spans(queries), k: spans(count), mask, scale: 1 };
    device().kernels.attend({ out, lse }, q.x, { k: k.x, v: v.x }, tile);
    const [actualOut, actualLse] = [await out.read(), await lse.read()];
    for (const [row, lseAt] of actualLse.entries()) {
      const query = q.values.slice(row * size, (row + 1) * size);
      const scores = Array.from({ length: numVisible }, (_, j) =>
        query.reduce((sum, x, d) => sum + x * k.values[j * size + d]!, 0),
      );
      const maxScore = Math.max(...scores);
      const weights = scores.map((score) => Math.exp(score - maxScore));
      const total = weights.reduce((sum, weight) => sum + weight);
      expect(Math.abs(lseAt - (maxScore + Math.log(total)))).toBeLessThan(1e-5);
      for (let d = 0; d < size; d++) {
        const expectedValue = weights.reduce((sum, weight, j) => sum + (weight / total) * v.values[j * size + d]!, 0);
        expect(Math.abs(actualOut[row * size + d]! - expectedValue)).toBeLessThan(tolerances[dtype]);
      }
    }
    for (const { x } of [q, k, v]) x[Symbol.dispose]();
  });
});

/** Computes one row of attention in float64. */
function reference(
  q: readonly number[],
  k: Sample,
  v: Sample,
  { kvHead, seen: numVisible }: { kvHead: number; seen: number },
): { out: number[]; lse: number } {
  const keyOffset = (j: number): number => (kvHead * keys + j) * headDim;
  const scores = Array.from({ length: numVisible }, (_, j) =>
    q.reduce((sum, x, d) => sum + x * k.values[keyOffset(j) + d]! * scale, 0),
  );
  const maxScore = Math.max(...scores);
  const weights = scores.map((score) => Math.exp(score - maxScore));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const out = q.map((_, d) =>
    weights.reduce((sum, weight, j) => sum + (weight / total) * v.values[keyOffset(j) + d]!, 0),
  );
  return { out, lse: maxScore + Math.log(total) };
}
