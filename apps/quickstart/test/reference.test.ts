import { type Mask, masks } from "@mosaic/attention";
import { describe, expect, it } from "vitest";
import { randomNormals, type Problem, referenceAttention } from "../src/reference.ts";

const [tokens, headDim] = [7, 4];
const drawNormals = (seed: number): Float32Array => Float32Array.from(randomNormals(seed, 2 * tokens * headDim));
const createProblem = (mask: Mask): Problem => ({
  q: drawNormals(1),
  k: drawNormals(2),
  v: drawNormals(3),
  numHeads: 2,
  tokens,
  headDim,
  mask: mask.slices(tokens, tokens),
});
const rows = [0, 3, 6];
const dOut = Float64Array.from(randomNormals(9, rows.length * headDim));

/** Computes the loss of the gradients: Σ dOut · out over the sampled rows of head 1. */
function loss(given: Problem): number {
  return referenceAttention(given, 1, rows).out.reduce((sum, value, i) => sum + value * dOut[i]!, 0);
}

describe("the float64 reference", () => {
  it("averages the values if all keys are equal", () => {
    const uniformProblem = { ...createProblem(masks.causal()), k: new Float32Array(2 * tokens * headDim) };
    const { out, lse, effectiveKeyCounts } = referenceAttention(uniformProblem, 1, rows);
    const meanValue = (count: number): number => {
      let sum = 0;
      for (let key = 0; key < count; key++) sum += uniformProblem.v[(tokens + key) * headDim]! / count;
      return sum;
    };
    expect([out[0], out[headDim], out[2 * headDim]]).toEqual(
      [1, 4, 7].map((count) => expect.closeTo(meanValue(count), 12)),
    );
    expect(Array.from(lse)).toEqual([1, 4, 7].map((count) => expect.closeTo(Math.log(count), 12)));
    expect(Array.from(effectiveKeyCounts)).toEqual([1, 4, 7].map((count) => expect.closeTo(count, 9)));
  });

  it("attends to the keys that the mask allows, for rows in several slices", () => {
    const mask = masks.or(masks.slidingWindow(2), masks.globalTokens(1));
    const { out, effectiveKeyCounts } = referenceAttention(
      { ...createProblem(mask), k: new Float32Array(2 * tokens * headDim) },
      1,
      rows,
    );
    const { v } = createProblem(mask);
    const meanValue = (keys: readonly number[]): number =>
      keys.reduce((sum, key) => sum + v[(tokens + key) * headDim]! / keys.length, 0);
    const visibleKeysByRow = [[0], [0, 2, 3], [0, 5, 6]];
    expect([out[0], out[headDim], out[2 * headDim]]).toEqual(
      visibleKeysByRow.map((keys) => expect.closeTo(meanValue(keys), 12)),
    );
    expect(Array.from(effectiveKeyCounts)).toEqual(visibleKeysByRow.map(({ length }) => expect.closeTo(length, 9)));
  });

  it.each([
    ["full", masks.full()],
    ["causal", masks.causal()],
    ["documents", masks.documents([2, 4, 1], "causal")],
  ])("computes the gradients of the loss, mask %s", (_, mask) => {
    const baseProblem = createProblem(mask);
    const reference = referenceAttention(baseProblem, 1, rows, dOut);
    const step = 2 ** -10;
    for (const [name, row] of [
      ["q", 3],
      ["k", 2],
      ["v", 0],
      ["k", 6],
    ] as const) {
      const elementIndex = (tokens + row) * headDim + 1;
      const shiftElement = (shift: number): Problem => ({
        ...baseProblem,
        [name]: baseProblem[name].map((x, i) => (i === elementIndex ? x + shift : x)),
      });
      const slope = (loss(shiftElement(step)) - loss(shiftElement(-step))) / (2 * step);
      const exactGradient =
        name === "q" ? reference.dq[rows.indexOf(row) * headDim + 1]! : reference[`d${name}`][row * headDim + 1]!;
      expect(exactGradient).toBeCloseTo(slope, 4);
    }
  });
});
