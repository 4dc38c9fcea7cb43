import { describe, expect, it } from "vitest";
import { Embedder, readGenome } from "../src/embed.ts";

const options = { numHeads: 2, headDim: 8, seed: 3 };

describe("queries, keys and values of the genome", () => {
  const embedder = new Embedder(readGenome(), options);

  it("have the same bits at a position on every rank", () => {
    const fullProjections = embedder.projectPositions(Int32Array.from({ length: 40 }, (_, i) => i));
    const shard = new Embedder(readGenome(), options).projectPositions(Int32Array.of(31, 7));
    for (const name of ["q", "k", "v"] as const) {
      for (let head = 0; head < 2; head++) {
        const row = (x: Float32Array, length: number, index: number): number[] =>
          Array.from(x.subarray((head * length + index) * 8, (head * length + index + 1) * 8));
        expect(row(shard[name], 2, 0)).toEqual(row(fullProjections[name], 40, 31));
        expect(row(shard[name], 2, 1)).toEqual(row(fullProjections[name], 40, 7));
      }
    }
  });

  it("have about unit variance per token, and values that do not depend on the position", () => {
    const { q, v } = embedder.projectPositions(Int32Array.from({ length: 4000 }, (_, i) => i * 12));
    const variance = (x: Float32Array): number => x.reduce((sum, value) => sum + value * value, 0) / x.length;
    expect(variance(v)).toBeGreaterThan(0.7);
    expect(variance(v)).toBeLessThan(1.4);
    expect(variance(q) / variance(v)).toBeCloseTo(0.81, 1);
    const wrappedProjections = embedder.projectPositions(Int32Array.of(5, 48_502 + 5));
    expect(Array.from(wrappedProjections.v.subarray(0, 8))).toEqual(Array.from(wrappedProjections.v.subarray(8, 16)));
    expect(Array.from(wrappedProjections.k.subarray(0, 8))).not.toEqual(
      Array.from(wrappedProjections.k.subarray(8, 16)),
    );
  });

  it("are rotated by position, so that scores depend on the distance only", () => {
    const samePositions = Array.from({ length: 3 }, (_, i) => i * 48_502 + 100);
    const { q, k } = embedder.projectPositions(Int32Array.from(samePositions));
    const queryKeyDot = (i: number, j: number): number => {
      let sum = 0;
      for (let d = 0; d < 8; d++) sum += q[i * 8 + d]! * k[j * 8 + d]!;
      return sum;
    };
    expect(queryKeyDot(0, 1)).toBeCloseTo(queryKeyDot(1, 2), 4);
  });
});
