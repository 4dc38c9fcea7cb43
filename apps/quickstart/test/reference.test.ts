import { describe, expect, it } from "vitest";
import { randomNormals, type Problem, referenceAttention } from "../src/reference.ts";

const [tokens, dim] = [7, 4];
const draw = (seed: number): Float32Array => Float32Array.from(randomNormals(seed, 2 * tokens * dim));
const problem = (causal: boolean): Problem => ({
  q: draw(1),
  k: draw(2),
  v: draw(3),
  numHeads: 2,
  tokens,
  dim,
  causal,
});
const rows = [0, 3, 6];
const dOut = Float64Array.from(randomNormals(9, rows.length * dim));

/** The loss that the gradients are of: Σ dOut · out over the sampled rows of head 1. */
function loss(given: Problem): number {
  return referenceAttention(given, 1, rows).out.reduce((sum, value, i) => sum + value * dOut[i]!, 0);
}

describe("the float64 reference", () => {
  it("averages the values where all keys are alike", () => {
    const flat = { ...problem(true), k: new Float32Array(2 * tokens * dim) };
    const { out, lse, keysSeen } = referenceAttention(flat, 1, rows);
    const mean = (count: number): number => {
      let sum = 0;
      for (let key = 0; key < count; key++) sum += flat.v[(tokens + key) * dim]! / count;
      return sum;
    };
    expect([out[0], out[dim], out[2 * dim]]).toEqual([1, 4, 7].map((count) => expect.closeTo(mean(count), 12)));
    expect(Array.from(lse)).toEqual([1, 4, 7].map((count) => expect.closeTo(Math.log(count), 12)));
    expect(Array.from(keysSeen)).toEqual([1, 4, 7].map((count) => expect.closeTo(count, 9)));
  });

  it.each([false, true])("gives the derivatives of the loss, causal %s", (causal) => {
    const given = problem(causal);
    const truth = referenceAttention(given, 1, rows, dOut);
    const step = 2 ** -10;
    for (const [name, row] of [
      ["q", 3],
      ["k", 2],
      ["v", 0],
      ["k", 6],
    ] as const) {
      const at = (tokens + row) * dim + 1;
      const moved = (by: number): Problem => ({ ...given, [name]: given[name].map((x, i) => (i === at ? x + by : x)) });
      const slope = (loss(moved(step)) - loss(moved(-step))) / (2 * step);
      const exact = name === "q" ? truth.dq[rows.indexOf(row) * dim + 1]! : truth[`d${name}`][row * dim + 1]!;
      expect(exact).toBeCloseTo(slope, 4);
    }
  });
});
