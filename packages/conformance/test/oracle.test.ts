import { describe, expect, test } from "vitest";
import {
  attentionOracle,
  attentionOracleBackward,
  type AttentionProblem,
  maxError,
  moduleOracle,
  type ModuleProblem,
  normals,
  type OracleModifiers,
  philox,
  randomSlices,
  slicesToMaskMod,
} from "../src/index.ts";

const sizes = { batch: 2, numHeads: 4, numKvHeads: 2, queries: 7, keys: 9, headDim: 3, scale: 0.7 };

function createProblem(seed: number): AttentionProblem {
  const queryElements = sizes.batch * sizes.numHeads * sizes.queries * sizes.headDim;
  const keyElements = sizes.batch * sizes.numKvHeads * sizes.keys * sizes.headDim;
  const maskMod = slicesToMaskMod(randomSlices(sizes.queries, sizes.keys, seed));
  return { ...sizes, maskMod, q: normals(queryElements, 1), k: normals(keyElements, 2), v: normals(keyElements, 3) };
}

/** (f(x + h) − f(x − h)) / 2h, element by element. */
function numericalGradient(x: Float64Array, f: (x: Float64Array) => number): Float64Array {
  const h = 1e-5;
  return x.map((value, i) => (f(x.with(i, value + h)) - f(x.with(i, value - h))) / (2 * h));
}

function innerProduct(a: Float64Array, b: Float64Array): number {
  return a.reduce((sum, x, i) => sum + x * b[i]!, 0);
}

test("the oracle returns the value of a single key, 0 without keys, and the mean for equal scores", () => {
  const problem: AttentionProblem = {
    ...{ batch: 1, numHeads: 1, numKvHeads: 1, queries: 3, keys: 3, headDim: 1, scale: 1 },
    maskMod: (query, key) => (query === 0 ? key === 2 : query === 2),
    q: Float64Array.of(5, 6, 0),
    k: Float64Array.of(1, 2, 3),
    v: Float64Array.of(10, 20, 60),
  };
  const { out, lse } = attentionOracle(problem);
  expect(maxError(out, [60, 0, 30])).toBeLessThan(1e-13);
  expect(maxError(lse, [15, Number.NEGATIVE_INFINITY, Math.log(3)])).toBeLessThan(1e-13);
});

test("query heads read the KV head of their group", () => {
  const problem = createProblem(1);
  const { out } = attentionOracle(problem);
  const { numKvHeads: _, ...otherFields } = problem;
  // With every KV head repeated, this is attention without grouped heads.
  const repeatHeads = (x: Float64Array) => {
    const headElements = sizes.keys * sizes.headDim;
    const heads = Array.from({ length: x.length / headElements }, (_, i) =>
      Array.from(x.subarray(i * headElements, (i + 1) * headElements)),
    );
    return Float64Array.from(heads.flatMap((each) => [...each, ...each]));
  };
  const ungrouped = attentionOracle({
    ...otherFields,
    numKvHeads: sizes.numHeads,
    k: repeatHeads(problem.k),
    v: repeatHeads(problem.v),
  });
  expect(maxError(out, ungrouped.out)).toBe(0);
});

test.each([1, 2, 3, 4, 5])("the gradients of attention equal finite differences, mask %d", (seed) => {
  const problem = createProblem(seed);
  const dOut = normals(problem.q.length, 4);
  const computeLoss = (overrides: Partial<AttentionProblem>) =>
    innerProduct(attentionOracle({ ...problem, ...overrides }).out, dOut);
  const { dq, dk, dv } = attentionOracleBackward(problem, dOut);
  expect(
    maxError(
      dq,
      numericalGradient(problem.q, (q) => computeLoss({ q })),
    ),
  ).toBeLessThan(1e-8);
  expect(
    maxError(
      dk,
      numericalGradient(problem.k, (k) => computeLoss({ k })),
    ),
  ).toBeLessThan(1e-8);
  expect(
    maxError(
      dv,
      numericalGradient(problem.v, (v) => computeLoss({ v })),
    ),
  ).toBeLessThan(1e-8);
});

describe("attention modifiers", () => {
  const valueHeadDim = 5;
  const allModifiers: OracleModifiers & { readonly sinks: readonly number[] } = {
    sinks: [0.5, -1, 2, 0],
    softcap: 0.8,
    slopes: [0.5, 0.25, 0.1, 0.3],
    dropout: { probability: 0.3, seed: 5, stream: 6, batchOffset: 1 },
  };
  const baseProblem = { ...createProblem(2), maskMod: (query: number, key: number) => key <= query + 2 };
  const values = normals(sizes.batch * sizes.numKvHeads * sizes.keys * valueHeadDim, 3);
  const problem: AttentionProblem = { ...baseProblem, valueHeadDim, v: values, modifiers: allModifiers };

  test("have gradients that equal finite differences", () => {
    const dOut = normals(sizes.batch * sizes.numHeads * sizes.queries * valueHeadDim, 4);
    const computeLoss = (overrides: Partial<AttentionProblem>) =>
      innerProduct(attentionOracle({ ...problem, ...overrides }).out, dOut);
    const gradients = attentionOracleBackward(problem, dOut);
    const expected = {
      dq: numericalGradient(problem.q, (q) => computeLoss({ q })),
      dk: numericalGradient(problem.k, (k) => computeLoss({ k })),
      dv: numericalGradient(problem.v, (v) => computeLoss({ v })),
      dSinks: numericalGradient(Float64Array.from(allModifiers.sinks), (sinks) =>
        computeLoss({ modifiers: { ...allModifiers, sinks: Array.from(sinks) } }),
      ),
    };
    for (const name of ["dq", "dk", "dv", "dSinks"] as const) {
      expect(maxError(gradients[name], expected[name]), name).toBeLessThan(1e-8);
      expect(Math.max(...expected[name]), name).toBeGreaterThan(1e-3);
    }
  });

  test("each change the result, and without sinks there are no sink gradients", () => {
    const { out } = attentionOracle({ ...problem, modifiers: {} });
    for (const [name, value] of Object.entries(allModifiers)) {
      const modified = attentionOracle({ ...problem, modifiers: { [name]: value } });
      expect(maxError(modified.out, out), name).toBeGreaterThan(1e-3);
    }
    expect(attentionOracleBackward({ ...problem, modifiers: {} }, out).dSinks).toHaveLength(0);
  });

  test("philox reproduces the known answers of Random123", () => {
    // Random123, kat_vectors: philox4x32 10.
    const maxWords = [0xffffffff, 0xffffffff];
    expect(philox([0, 0, 0, 0], [0, 0])).toEqual([0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
    expect(philox([...maxWords, ...maxWords], maxWords)).toEqual([0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
    expect(philox([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0])).toEqual([
      0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1,
    ]);
  });
});

test("the gradients of the module equal finite differences", () => {
  const module = { batch: 2, length: 5, embed: 6, numHeads: 4, numKvHeads: 2, headDim: 2 };
  const qkvWidth = (4 + 2 * 2) * 2;
  const parameters = {
    "qkv_proj.weight": normals(qkvWidth * 6, 1),
    "qkv_proj.bias": normals(qkvWidth, 2),
    "out_proj.weight": normals(6 * 8, 3),
    "out_proj.bias": normals(6, 4),
  };
  const problem: ModuleProblem = {
    ...{ sizes: module, maskMod: (q, k) => k <= q, parameters },
    ...{ x: normals(2 * 5 * 6, 5), dOut: normals(2 * 5 * 6, 6) },
  };
  const { dx, gradients } = moduleOracle(problem);
  const computeLoss = (overrides: Partial<ModuleProblem>) =>
    innerProduct(moduleOracle({ ...problem, ...overrides }).out, problem.dOut);
  expect(
    maxError(
      dx,
      numericalGradient(problem.x, (x) => computeLoss({ x })),
    ),
  ).toBeLessThan(1e-7);
  for (const name of Object.keys(parameters) as (keyof typeof parameters)[]) {
    const expected = numericalGradient(parameters[name], (value) =>
      computeLoss({ parameters: { ...parameters, [name]: value } }),
    );
    expect(maxError(gradients[name], expected), name).toBeLessThan(1e-7);
  }
});
