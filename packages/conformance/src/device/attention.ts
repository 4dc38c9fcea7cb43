import { type Device, type DType, masks, type Slice, type Span } from "@mosaic/core";
import { maskTrials } from "../backend/masks.ts";
import { type Case, check, checkClose, checkEqual, magnitude } from "../check.ts";
import { type AttentionProblem, type MaskMod, slicesToMaskMod, randomSlices } from "../oracle/attention.ts";
import { epsilon, normals, roundTo } from "../oracle/numbers.ts";
import type { OracleModifiers } from "../oracle/score-modifiers.ts";
import { type AttentionBlocks, type AttentionCase, checkAttention, constantTensor } from "./attention-run.ts";
import { type MakeDevice, withDevice, tensorFrom } from "./tensors.ts";

const makeSpan = (start: number, length: number, step = 1): Span => ({ start, length, step });

/** Returns cases of attend and attendBackward. `tolerance` is relative to the largest value, by dtype of the inputs. */
export function attentionCases(make: MakeDevice, tolerance: Readonly<Record<DType, number>> = tolerances): Case[] {
  const runCase = attentionRunner(make, tolerance);
  return [
    ...maskTrials(70, 70, 3).map(({ mask, maskMod }) => ({
      name: `attention: ${mask.name}`,
      run: () => checkMask(runCase, { queries: 70, keys: 70, slices: mask.slices(70, 70), maskMod }),
    })),
    ...maskTrials(33, 140, 4).map(({ mask, maskMod }) => ({
      name: `attention: ${mask.name}, more keys than queries`,
      run: () => checkMask(runCase, { queries: 33, keys: 140, slices: mask.slices(33, 140), maskMod }),
    })),
    ...(["float32", "bfloat16"] as const).map((dtype) => ({
      name: `attention: more keys than a block, ${dtype}`,
      run: () => runCase(createLongCase(dtype)),
    })),
    ...[1, 2, 3, 5, 8, 15, 16, 17, 32, 40, 64, 80, 96, 100, 128, 192, 255, 256].map((headDim) => ({
      name: `attention: head size ${headDim}`,
      run: () => runCase(randomCausalCase({ headDim, numHeads: 3, numKvHeads: 1 })),
    })),
    ...(["bfloat16", "float16"] as const).map((dtype) => ({
      name: `attention: ${dtype}`,
      run: () => runCase(randomCausalCase({ headDim: 24, numHeads: 4, numKvHeads: 2, dtype })),
    })),
    ...(["reversed", "gapped"] as const).map((storageOrder) => ({
      name: `attention: strided, ${storageOrder}`,
      run: () => runCase({ ...randomCausalCase({ headDim: 12, numHeads: 4, numKvHeads: 2 }), storageOrder }),
    })),
    ...(["float32", "bfloat16", "float16"] as const).flatMap((dtype) => [
      { name: `attention: NaN outside all mask slices, ${dtype}`, run: () => runCase(createPoisonedMarginCase(dtype)) },
      {
        name: `attention: NaN in keys after the last query, ${dtype}`,
        run: () => runCase(createPoisonedSuffixCase(dtype)),
      },
    ]),
    ...sampleMaskCases(make, runCase),
    {
      name: "attention: NaN in a key does not propagate to earlier queries, float32",
      run: () => withDevice(make, checkEarlierQueries),
    },
    {
      name: "attention: the state is unchanged by an empty mask, zero keys, or zero queries",
      run: () => withDevice(make, checkEdgeCases),
    },
    {
      name: "attention: scores that overflow exp",
      run: () => runCase(randomCausalCase({ headDim: 16, numHeads: 2, numKvHeads: 2, queryScale: 30 })),
    },
  ];
}

/** Returns a function that runs a case on a fresh device. */
export function attentionRunner(
  make: MakeDevice,
  tolerance: Readonly<Record<DType, number>> = tolerances,
): (attention: AttentionCase) => Promise<void> {
  return (attention) => withDevice(make, (device) => checkAttention(device, attention, tolerance));
}

/**
 * Tolerances for the rounding of products and sums in float32. With 16-bit inputs, a device may also round
 * probabilities to the dtype of the inputs.
 */
const tolerances: Readonly<Record<DType, number>> = {
  float32: 64 * epsilon.float32,
  bfloat16: 4 * epsilon.bfloat16,
  float16: 4 * epsilon.float16,
};

interface MaskCase {
  readonly queries: number;
  readonly keys: number;
  readonly slices: readonly Slice[];
  readonly maskMod: MaskMod;
}

/** Checks one mask on the rows of various placements, with keys in one block, in several, and out of order. */
export async function checkMask(
  runCase: (attention: AttentionCase) => Promise<void>,
  maskCase: MaskCase & Partial<AttentionSizes>,
): Promise<void> {
  const { queries, keys, slices } = maskCase;
  const problem = makeProblem({ numHeads: 2, numKvHeads: 1, headDim: 8, ...maskCase });
  const thirdOfKeys = Math.floor(keys / 3);
  const unequalKeys = [[makeSpan(thirdOfKeys, keys - thirdOfKeys)], [makeSpan(0, thirdOfKeys)]];
  const stripedKeys = [[makeSpan(1, Math.floor(keys / 2), 2)], [makeSpan(0, Math.ceil(keys / 2), 2)]];
  const zigzagKeys = [[makeSpan(0, 10), makeSpan(keys - 9, 9)], [makeSpan(10, keys - 19)]];
  const arrangements: AttentionBlocks[] = [
    { queries: [makeSpan(0, queries)], keys: [[makeSpan(0, keys)]] },
    { queries: [makeSpan(5, 20)], keys: unequalKeys },
    { queries: [makeSpan(2, Math.floor((queries - 2) / 3), 3)], keys: stripedKeys },
    { queries: [makeSpan(queries - 7, 7), makeSpan(0, 7)], keys: zigzagKeys },
  ];
  for (const arrangement of arrangements) {
    await runCase({ ...arrangement, mask: slices, problem, dtype: "float32" });
  }
}

export interface AttentionSizes {
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly valueHeadDim?: number;
  readonly modifiers?: OracleModifiers;
  readonly dtype?: DType;
  /** Factor on the queries. Scores grow with it, and so does the relative error of their exponentials. */
  readonly queryScale?: number;
}

export function makeProblem({
  queries,
  keys,
  maskMod,
  ...sizes
}: AttentionSizes & Omit<MaskCase, "slices">): AttentionProblem {
  const { numHeads, numKvHeads, headDim, valueHeadDim = headDim, dtype = "float32", queryScale = 1, modifiers } = sizes;
  const batch = 2;
  const q = normals(batch * numHeads * queries * headDim, 1, dtype).map((x) => roundTo(x * queryScale, dtype));
  const k = normals(batch * numKvHeads * keys * headDim, 2, dtype);
  const v = normals(batch * numKvHeads * keys * valueHeadDim, 3, dtype);
  const scale = 1 / Math.sqrt(headDim);
  const optionalFields = { valueHeadDim, ...(modifiers && { modifiers }) };
  return { batch, numHeads, numKvHeads, queries, keys, headDim, scale, maskMod, q, k, v, ...optionalFields };
}

function randomCausalCase(sizes: AttentionSizes): AttentionCase {
  const { queryScale = 1 } = sizes;
  const factors = { out: queryScale, lse: queryScale, dq: queryScale, dk: queryScale, dv: queryScale };
  return { ...causalCase(makeProblem({ ...sizes, ...causalExtent }), sizes.dtype), factors };
}

/**
 * Returns a causal case with more queries and keys than a block of a device, and with a remainder. The queries are at
 * the last positions of the keys.
 */
function createLongCase(dtype: DType): AttentionCase {
  const [queries, keys] = [150, 1100];
  const maskMod: MaskMod = (q, k) => k <= q + keys - queries;
  return {
    queries: [makeSpan(0, queries)],
    keys: [[makeSpan(0, keys)]],
    mask: [{ q0: 0, q1: queries, k0: 0, k1: keys, type: "causal" }],
    problem: makeProblem({ numHeads: 1, numKvHeads: 1, headDim: 8, queries, keys, maskMod, dtype }),
    dtype,
  };
}

const SEQUENCE_LENGTH = 41;
/** 41 queries and keys with a causal mask: no query attends to a later key. */
export const causalExtent: Pick<AttentionProblem, "queries" | "keys" | "maskMod"> = {
  queries: SEQUENCE_LENGTH,
  keys: SEQUENCE_LENGTH,
  maskMod: (q, k) => k <= q,
};

/** Returns a case of a problem with `causalExtent`, with its keys in two blocks. */
export function causalCase(problem: AttentionProblem, dtype: DType = "float32"): AttentionCase {
  return {
    queries: [makeSpan(0, SEQUENCE_LENGTH)],
    keys: [[makeSpan(0, 17)], [makeSpan(17, SEQUENCE_LENGTH - 17)]],
    mask: [{ q0: 0, q1: SEQUENCE_LENGTH, k0: 0, k1: SEQUENCE_LENGTH, type: "causal" }],
    problem,
    dtype,
  };
}

/**
 * Returns cases of samples that attend to different keys. They are skipped on a device without that feature, which must
 * reject them (schema.ts).
 */
function sampleMaskCases(make: MakeDevice, runCase: (attention: AttentionCase) => Promise<void>): Case[] {
  const runWhereSupported = async (attention: AttentionCase): Promise<void> => {
    const device = make();
    const isSupported = device.features?.includes("sampleMasks") ?? false;
    device[Symbol.dispose]();
    if (isSupported) await runCase(attention);
  };
  return [
    ...(["float32", "bfloat16", "float16"] as const).flatMap((dtype) =>
      [24, 64, 100].map((headDim) => ({
        name: `attention: padded samples, ${dtype}, head size ${headDim}`,
        run: () => runWhereSupported(paddedSamplesCase({ headDim, numHeads: 4, numKvHeads: 2, dtype })),
      })),
    ),
    ...[1, 2, 3].map((seed) => ({
      name: `attention: random sample masks, plus a mask shared by all samples, seed ${seed}`,
      run: () => runWhereSupported(randomSamplesCase(seed)),
    })),
    {
      name: "attention: shared sample masks with a batch offset",
      run: async () => {
        const { mask, ...caseWithoutMask } = randomCausalCase({ headDim: 16, numHeads: 2, numKvHeads: 1 });
        const modifiers = { sampleMasks: [[], mask, [...mask]], origin: { batch: 1, head: 0 } };
        await runWhereSupported({ ...caseWithoutMask, mask: [], modifiers });
      },
    },
  ];
}

/** Returns a case of two samples, one padded on the left and one on the right. The padding is NaN. */
function paddedSamplesCase(sizes: AttentionSizes): AttentionCase {
  const sampleRange = (sample: number): readonly [number, number] => (sample === 0 ? [11, SEQUENCE_LENGTH] : [0, 25]);
  const isInSampleRange = (sample: number, position: number): boolean =>
    position >= sampleRange(sample)[0] && position < sampleRange(sample)[1];
  const maskMod: MaskMod = (q, k, sample = 0) => k <= q && isInSampleRange(sample, q) && isInSampleRange(sample, k);
  const problem = makeProblem({ ...sizes, ...causalExtent, maskMod });
  const poison = (x: Float64Array, headCount: number): Float64Array =>
    x.map((value, i) => {
      const row = Math.floor(i / problem.headDim);
      return isInSampleRange(Math.floor(row / SEQUENCE_LENGTH / headCount), row % SEQUENCE_LENGTH) ? value : Number.NaN;
    });
  const [q, k] = [poison(problem.q, problem.numHeads), poison(problem.k, problem.numKvHeads)];
  const poisonedProblem = { ...problem, q, k, v: poison(problem.v, problem.numKvHeads) };
  const sampleMasks = [0, 1].map((sample): readonly Slice[] => {
    const [start, end] = sampleRange(sample);
    return [{ q0: start, q1: end, k0: start, k1: end, type: "causal" }];
  });
  return { ...causalCase(poisonedProblem, sizes.dtype), mask: [], modifiers: { sampleMasks } };
}

/**
 * Returns a case of random slices. All samples share every third slice; of the others, each sample has its own list.
 */
function randomSamplesCase(seed: number): AttentionCase {
  const slices = randomSlices(SEQUENCE_LENGTH, SEQUENCE_LENGTH, 20 + seed);
  const mask = slices.filter((_, i) => i % 3 === 0);
  const sampleMasks = [1, 2].map((remainder) =>
    slices.filter((_, i) => i % 3 === remainder || (i % 3 === 2 && remainder === 1)),
  );
  const maskMods = sampleMasks.map((sampleSlices) => slicesToMaskMod([...mask, ...sampleSlices]));
  const maskMod: MaskMod = (q, k, sample = 0) => maskMods[sample]!(q, k);
  const problem = makeProblem({ numHeads: 3, numKvHeads: 3, headDim: 33, ...causalExtent, maskMod });
  return { ...causalCase(problem), mask, modifiers: { sampleMasks } };
}

/** Returns a case of one slice in the middle. Queries, keys, values and dOut outside the slice are NaN. */
function createPoisonedMarginCase(dtype: DType): AttentionCase {
  const [start, end] = [5, 30];
  const isInBlock = (q: number, k: number) => q >= start && q < end && k >= start && k <= q;
  const problem = makeProblem({ headDim: 64, numHeads: 2, numKvHeads: 1, ...causalExtent, maskMod: isInBlock, dtype });
  const poison = (x: Float64Array) =>
    x.map((value, i) => {
      const row = Math.floor(i / problem.headDim) % SEQUENCE_LENGTH;
      return row >= start && row < end ? value : Number.NaN;
    });
  const poisonedProblem = { ...problem, q: poison(problem.q), k: poison(problem.k), v: poison(problem.v) };
  const mask: readonly Slice[] = [{ q0: start, q1: end, k0: start, k1: end, type: "causal" }];
  return { ...causalCase(poisonedProblem, dtype), mask };
}

/** Returns a case of the first rows of a causal mask. Later keys and values, which no row attends to, are NaN. */
function createPoisonedSuffixCase(dtype: DType): AttentionCase {
  const rows = 23;
  const maskMod = (q: number, k: number) => q < rows && k <= q;
  const problem = makeProblem({ headDim: 64, numHeads: 2, numKvHeads: 1, ...causalExtent, maskMod, dtype });
  const poison = (x: Float64Array) =>
    x.map((value, i) => (Math.floor(i / problem.headDim) % SEQUENCE_LENGTH < rows ? value : Number.NaN));
  const poisonedProblem = { ...problem, k: poison(problem.k), v: poison(problem.v) };
  return { ...causalCase(poisonedProblem, dtype), queries: [makeSpan(0, rows)] };
}

/** Checks queries and keys in one tile, in which later queries attend to a NaN key and earlier ones do not. */
async function checkEarlierQueries(device: Device): Promise<void> {
  const [rows, width, nanRow] = [24, 8, 10];
  const shape = [1, 1, rows, width];
  const mask = masks.causal().slices(rows, rows);
  const tile = { q: [makeSpan(0, rows)], k: [makeSpan(0, rows)], mask, scale: 1 };
  using q = tensorFrom(device, normals(rows * width, 1), { shape });
  using dOut = tensorFrom(device, normals(rows * width, 4), { shape });
  const resultsByValue = [];
  for (const value of [1, Number.NaN]) {
    const valuesWithReplacedRow = (seed: number) =>
      normals(rows * width, seed).map((x, i) => (Math.floor(i / width) === nanRow ? value : x));
    using k = tensorFrom(device, valuesWithReplacedRow(2), { shape });
    using v = tensorFrom(device, valuesWithReplacedRow(3), { shape });
    using out = constantTensor(device, 0, { shape, storageOrder: "dense" });
    using lse = constantTensor(device, Number.NEGATIVE_INFINITY, { shape: shape.slice(0, 3), storageOrder: "dense" });
    using delta = constantTensor(device, 0, { shape: shape.slice(0, 3), storageOrder: "dense" });
    using dq = constantTensor(device, 0, { shape, storageOrder: "dense" });
    using dk = constantTensor(device, 0, { shape, storageOrder: "dense" });
    using dv = constantTensor(device, 0, { shape, storageOrder: "dense" });
    device.kernels.attend({ out, lse }, q, { k, v }, tile);
    device.kernels.rowDot(delta, dOut, out);
    device.kernels.attendBackward({ dq, dk, dv }, q, { dOut, lse, delta }, { k, v }, tile);
    resultsByValue.push([await out.read(), await dq.read()]);
  }
  for (const [i, resultName] of ["out", "dq"].entries()) {
    const [finiteResult, poisonedResult] = resultsByValue.map((results) => results[i]!);
    const [tolerance, numElementsBefore] = [tolerances.float32 * (1 + magnitude(finiteResult!)), nanRow * width];
    checkClose(
      poisonedResult!.slice(0, numElementsBefore),
      finiteResult!.slice(0, numElementsBefore),
      tolerance,
      `${resultName} of queries before the NaN key`,
    );
    check(
      Number.isNaN(poisonedResult![nanRow * width]),
      `${resultName} of the first query that attends to the NaN key: expected NaN, received ${poisonedResult![nanRow * width]}`,
    );
  }
}

async function checkEdgeCases(device: Device): Promise<void> {
  const shape = [1, 1, 3, 4];
  using q = tensorFrom(device, normals(12, 1), { shape });
  using k = tensorFrom(device, normals(8, 2), { shape: [1, 1, 2, 4] });
  using v = tensorFrom(device, normals(8, 3), { shape: [1, 1, 2, 4] });
  using out = tensorFrom(device, normals(12, 4), { shape });
  using lse = tensorFrom(device, [0.5, Number.NEGATIVE_INFINITY, -2], { shape: [1, 1, 3] });
  const valuesBefore = [await out.read(), await lse.read()] as const;
  const tile = { q: [makeSpan(0, 3)], k: [makeSpan(0, 2)], mask: [], scale: 1 };
  device.kernels.attend({ out, lse }, q, { k, v }, tile);
  checkEqual(await out.read(), valuesBefore[0], "out with an empty mask");
  checkEqual(await lse.read(), valuesBefore[1], "lse with an empty mask");

  using emptyKeys = device.empty([1, 1, 0, 4], "float32");
  using emptyRows = device.empty([1, 1, 0], "float32");
  const fullMask = masks.full().slices(3, 2);
  device.kernels.attend({ out, lse }, q, { k: emptyKeys, v: emptyKeys }, { ...tile, k: [], mask: fullMask });
  device.kernels.attend({ out: emptyKeys, lse: emptyRows }, emptyKeys, { k, v }, { ...tile, q: [], mask: fullMask });
  const grads = { dq: emptyKeys, dk: emptyKeys, dv: emptyKeys };
  device.kernels.attendBackward(
    grads,
    emptyKeys,
    { dOut: emptyKeys, lse: emptyRows, delta: emptyRows },
    { k: emptyKeys, v: emptyKeys },
    {
      ...tile,
      q: [],
      k: [],
      mask: fullMask,
    },
  );
  checkEqual(await out.read(), valuesBefore[0], "out with zero keys");
  checkEqual(await lse.read(), valuesBefore[1], "lse with zero keys");
}
