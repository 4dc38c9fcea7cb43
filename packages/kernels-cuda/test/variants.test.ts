import { runsOnGpu } from "./emulated.ts";
import {
  attentionOracle,
  attentionOracleBackward,
  checkClose,
  magnitude,
  type MaskMod,
  maskTrials,
  normals,
  type OracleModifiers,
  pairwise,
} from "@mosaic/conformance";
import {
  attention,
  type AttentionDropout,
  type DType,
  fromArray,
  init,
  masks,
  type Slice,
  type Span,
} from "@mosaic/core";
import { afterEach, expect, test } from "vitest";
import { cuda, cudaSystem } from "../src/index.ts";
import { checkVariant } from "./score-modifiers.ts";

// The device suite tests variants one by one, with few sizes. Here every pair of a variant, a mask, an order of rows, a
// dtype, head sizes and a GPU is tested.

afterEach(() => {
  delete process.env.MOSAIC_EMULATED_CAPABILITY;
});

const [queries, keys, batch] = [30, 70, 2];
const span = (start: number, length: number, step = 1): Span => ({ start, length, step });
const dropout: AttentionDropout = { probability: 0.3, seed: 2 ** 40 + 3, stream: 5, batchOffset: 7 };
const modifiers: Readonly<Record<string, OracleModifiers>> = {
  softcap: { softcap: 1.2 },
  slopes: { slopes: [9, 0.3, 0.02], origin: { batch: 0, head: 1 } },
  dropout: { dropout, origin: { batch: 0, head: 3 } },
  "value head size": {},
  "all of them": { softcap: 2, slopes: [0.1, 0.05], dropout },
};

const trials = pairwise({
  variant: Object.keys(modifiers),
  mask: ["causal", "slidingWindow", "fromSlices", "lengths"],
  order: ["contiguous", "striped", "unordered"],
  dtype: ["float32", "bfloat16", "float16"] satisfies DType[],
  /**
   * Head sizes of keys and of values: every size that kernels are compiled for, including ones that are not multiples
   * of 16 bytes.
   */
  size: [
    [20, 32],
    [64, 37],
    [40, 128],
    [192, 80],
  ],
  capability: runsOnGpu ? [""] : ["80", "90"],
});

const spanOrders: Readonly<Record<string, (length: number) => readonly Span[]>> = {
  contiguous: (length) => [span(0, length)],
  striped: (length) => [0, 1, 2].map((first) => span(first, Math.ceil((length - first) / 3), 3)),
  unordered: (length) => [span(length - 10, 10), span(0, 10), span(10, length - 20)],
};

function findMaskTrial(name: string): {
  readonly mask: readonly Slice[];
  readonly sampleMasks?: readonly (readonly Slice[])[];
  readonly maskMod: MaskMod;
} {
  if (name !== "lengths") {
    const { mask, maskMod } = maskTrials(queries, keys, 3).find((each) => each.mask.name.startsWith(name))!;
    return { mask: mask.slices(queries, keys), maskMod };
  }
  const lengths = [30, 13];
  const sampleMasks = lengths.map((length) => masks.causal().slices(length, length));
  return { mask: [], sampleMasks, maskMod: (q, k, sample = 0) => k <= q && q < lengths[sample]! };
}

test.each(trials.map((trial) => ({ ...trial, name: JSON.stringify(Object.values(trial)) })))(
  "attention matches the float64 reference: $name",
  async ({ variant, mask, order, dtype, size, capability }) => {
    if (!runsOnGpu) process.env.MOSAIC_EMULATED_CAPABILITY = capability;
    using device = cuda();
    const [headDim, otherDim] = size as [number, number];
    const valueHeadDim = variant === "value head size" || variant === "all of them" ? otherDim : headDim;
    const heads = { numHeads: 2, numKvHeads: 1 };
    const { maskMod, ...slices } = findMaskTrial(mask);
    const problem = {
      ...heads,
      batch,
      queries,
      keys,
      headDim,
      valueHeadDim,
      scale: 1 / Math.sqrt(headDim),
      maskMod,
      modifiers: modifiers[variant]!,
      q: normals(batch * heads.numHeads * queries * headDim, 1, dtype),
      k: normals(batch * keys * headDim, 2, dtype),
      v: normals(batch * keys * valueHeadDim, 3, dtype),
    };
    await checkVariant(device, {
      problem,
      dtype,
      queries: spanOrders[order]!(queries),
      keys: spanOrders[order]!(keys),
      ...slices,
    });
  },
);

test.each(["float32", "bfloat16"] as const)(
  "attention with sinks and all variants matches the reference: %s",
  async (dtype) => {
    await using ctx = await init({ device: cuda(), rank: 0, worldSize: 1 });
    const sizes = { batch: 2, numHeads: 4, numKvHeads: 2, queries: 41, keys: 41, headDim: 16, valueHeadDim: 24 };
    const headParameters = { sinks: [0.5, -1, 2, 0], slopes: [0.25, 0.125, 0.0625, 0.03125] };
    const dropoutOptions = { probability: Math.fround(0.2), seed: ctx.seed, stream: 0, batchOffset: 0 };
    const drawValues = (heads: number, width: number, seed: number) => normals(2 * heads * 41 * width, seed, dtype);
    const problem = {
      ...sizes,
      scale: 0.25,
      maskMod: (query: number, key: number) => key <= query,
      modifiers: { ...headParameters, softcap: 3, dropout: dropoutOptions },
      q: drawValues(4, 16, 1),
      k: drawValues(2, 16, 2),
      v: drawValues(2, 24, 3),
    };
    const dOut = drawValues(4, 24, 4);
    const expected = { ...attentionOracle(problem), ...attentionOracleBackward(problem, dOut) };
    const tensor = (values: Float64Array, heads: number, width: number) =>
      fromArray(ctx, values, [2, heads, 41, width], { dtype });
    using q = tensor(problem.q, 4, 16);
    using k = tensor(problem.k, 2, 16);
    using v = tensor(problem.v, 2, 24);
    using g = tensor(dOut, 4, 24);
    using sinks = fromArray(ctx, headParameters.sinks, [4]);
    using alibiSlopes = fromArray(ctx, headParameters.slopes, [4]);
    for (const x of [q, k, v, sinks]) x.requiresGrad = true;
    const options = { mask: masks.causal(), scale: 0.25, sinks, softcap: 3, alibiSlopes, dropout: 0.2 };
    const { out, lse } = attention(ctx, q, k, v, { ...options, returnLse: true });
    out.backward(g);
    const tolerance = dtype === "float32" ? 1e-5 : 2 ** -6;
    for (const [name, actual] of [
      ["out", out],
      ["lse", lse],
      ["dq", q.grad!],
      ["dk", k.grad!],
      ["dv", v.grad!],
      ["dSinks", sinks.grad!],
    ] as const) {
      checkClose(await actual.read(), expected[name], tolerance * (1 + magnitude(expected[name])), name);
      actual.dispose();
    }
  },
);

const differentSizes = "head sizes that differ between keys and values";
const kernelTrials = [
  { input: "modified scores", capability: "90", headDim: 64, dtype: "float16", softcap: 2, ran: "Modified_float16_64" },
  { input: "modified scores", capability: "80", headDim: 40, dtype: "float32", softcap: 2, ran: "Modified_float32_64" },
  { input: "float32", capability: "90", headDim: 64, dtype: "float32", softcap: undefined, ran: "_float32_64" },
  {
    input: differentSizes,
    capability: "90",
    headDim: 128,
    dtype: "bfloat16",
    softcap: undefined,
    ran: "Hopper_bfloat16_128",
  },
  { input: differentSizes, capability: "80", headDim: 32, dtype: "bfloat16", softcap: undefined, ran: "_bfloat16_64" },
] as const;
/** On a real GPU, the trials of its own kernels. */
const gpuCapability = runsOnGpu && (cudaSystem().gpus[0]!.capability === "9.0" ? "90" : "80");

test.each(kernelTrials.filter((trial) => !gpuCapability || trial.capability === gpuCapability))(
  "attention runs the kernels for $input on capability $capability: $ran",
  async ({ capability, headDim, dtype, softcap, ran }) => {
    if (!runsOnGpu) process.env.MOSAIC_EMULATED_CAPABILITY = capability;
    using device = cuda();
    device.startTrace();
    const problem = {
      ...{ batch: 1, numHeads: 1, numKvHeads: 1, queries: 8, keys: 8, headDim, valueHeadDim: 64, scale: 1 },
      maskMod: () => true,
      modifiers: softcap === undefined ? {} : { softcap },
      q: normals(8 * headDim, 1, dtype),
      k: normals(8 * headDim, 2, dtype),
      v: normals(8 * 64, 3, dtype),
    };
    const rows = [span(0, 8)];
    await checkVariant(device, { problem, dtype, queries: rows, keys: rows, mask: masks.full().slices(8, 8) });
    const names = (await device.stopTrace()).map(({ name }) => name).filter((name) => name.startsWith("attend"));
    expect(names).toEqual([`attend${ran}`, `attendKeys${ran}`, `attendQueries${ran}`]);
  },
);
