import { type AttentionDropout, type Device, type DType, type KernelFeature, masks, type Tile } from "@mosaic/core";
import { maskTrials } from "../backend/masks.ts";
import { type Case, check } from "../check.ts";
import type { OracleModifiers } from "../oracle/score-modifiers.ts";
import type { AttentionCase } from "./attention-run.ts";
import { attentionRunner, type AttentionSizes, causalCase, causalExtent, checkMask, makeProblem } from "./attention.ts";
import { allocate, type MakeDevice, tensorFrom, withDevice } from "./tensors.ts";

// Variants of attention. Each runs on devices that have its feature. Other devices must reject it (schema.ts).

const dropout: AttentionDropout = { probability: 0.25, seed: 2 ** 33 + 5, stream: 2 ** 32 + 9, batchOffset: 3 };
const slopes = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.3];
const origin = { batch: 2, head: 2 };

const variants: readonly { readonly name: KernelFeature; readonly modifiers: OracleModifiers }[] = [
  { name: "softcap", modifiers: { softcap: 1.5 } },
  { name: "slopes", modifiers: { slopes, origin } },
  { name: "dropout", modifiers: { dropout, origin } },
];
const combinedModifiers: OracleModifiers = { softcap: 2.5, slopes, dropout, origin };

/** Returns cases of attend and attendBackward with score modifiers, dropout and values of another head size. */
export function attentionVariantCases(make: MakeDevice, tolerance?: Readonly<Record<DType, number>>): Case[] {
  const runCase = attentionRunner(make, tolerance);
  const runIfSupported = (features: readonly KernelFeature[], body: () => Promise<void>) => async (): Promise<void> => {
    using device = make();
    if (features.every((feature) => device.features?.includes(feature))) await body();
  };
  const modifierFeatures: readonly KernelFeature[] = ["softcap", "slopes", "dropout"];
  const allFeatures: readonly KernelFeature[] = [...modifierFeatures, "valueHeadDim"];
  const heads = { numHeads: 4, numKvHeads: 2, headDim: 24 };
  return [
    ...variants.flatMap(({ name, modifiers }) =>
      (["float32", "bfloat16", "float16"] as const).map((dtype) => ({
        name: `attention: ${name}, ${dtype}`,
        run: runIfSupported([name], () => runCase(variantCase({ ...heads, dtype, modifiers }))),
      })),
    ),
    ...headDimPairs.flatMap(([headDim, valueHeadDim]) =>
      (["float32", "bfloat16"] as const).map((dtype) => ({
        name: `attention: KV head size ${headDim}, value head size ${valueHeadDim}, ${dtype}`,
        run: runIfSupported(["valueHeadDim"], () => runCase(variantCase({ ...heads, headDim, valueHeadDim, dtype }))),
      })),
    ),
    ...(["reversed", "gapped"] as const).map((storageOrder) => ({
      name: `attention: all modifiers combined, strided, ${storageOrder}`,
      run: runIfSupported(allFeatures, () =>
        runCase({ ...variantCase({ ...heads, valueHeadDim: 33, modifiers: combinedModifiers }), storageOrder }),
      ),
    })),
    ...maskTrials(70, 70, 3).map(({ mask, maskMod }) => ({
      name: `attention: all modifiers combined, ${mask.name}`,
      run: runIfSupported(modifierFeatures, () =>
        checkMask(runCase, {
          queries: 70,
          keys: 70,
          slices: mask.slices(70, 70),
          maskMod,
          modifiers: combinedModifiers,
        }),
      ),
    })),
    ...shortSizes.map((sizes) => ({
      name: `attention: all modifiers combined, ${sizes.queries}×${sizes.keys}, ${sizes.numHeads}/${sizes.numKvHeads} heads`,
      run: runIfSupported(allFeatures, () => runCase(fullCase(sizes))),
    })),
    {
      name: "attention: softcap of scores that overflow exp",
      run: runIfSupported(["softcap"], () =>
        runCase(variantCase({ numHeads: 2, numKvHeads: 2, headDim: 16, queryScale: 1000, modifiers: { softcap: 20 } })),
      ),
    },
    {
      name: "attention: the dropped fraction matches the probability, and seed and stream change the dropout mask",
      run: runIfSupported(["dropout"], () => withDevice(make, checkDropoutProbability)),
    },
  ];
}

/**
 * Head sizes of keys and values: those of multi-head latent attention (DeepSeek-V2), and sizes that do not fill
 * vectors.
 */
const headDimPairs = [
  [192, 128],
  [128, 192],
  [5, 9],
  [17, 1],
  [1, 256],
] as const;

/** Few queries and many keys, as in decoding, and many short sequences. */
const shortSizes = [
  { queries: 1, keys: 3000, numHeads: 6, numKvHeads: 2 },
  { queries: 3, keys: 200, numHeads: 4, numKvHeads: 4 },
  { queries: 7, keys: 7, numHeads: 16, numKvHeads: 16 },
] as const;

function variantCase(sizes: AttentionSizes): AttentionCase {
  const { queryScale = 1 } = sizes;
  const problem = makeProblem({ ...sizes, ...causalExtent });
  // For saturated scores, derivatives are differences of numbers close to 1, multiplied by queries.
  return { ...causalCase(problem, sizes.dtype), factors: { dq: queryScale, dk: queryScale } };
}

function fullCase({ queries, keys, ...heads }: (typeof shortSizes)[number]): AttentionCase {
  const headSlopes = Array.from({ length: origin.head + heads.numHeads }, (_, i) => 0.1 / (1 + i));
  const modifiers = { ...combinedModifiers, slopes: headSlopes };
  const problem = makeProblem({
    ...heads,
    headDim: 16,
    valueHeadDim: 8,
    queries,
    keys,
    maskMod: () => true,
    modifiers,
  });
  const fullSpan = (length: number) => ({ start: 0, length, step: 1 });
  return {
    queries: [fullSpan(queries)],
    keys: [[fullSpan(keys)]],
    mask: masks.full().slices(queries, keys),
    problem,
    dtype: "float32",
  };
}

/** With equal scores and values of 1, out is the number of weights that are kept, divided by the expected number. */
async function checkDropoutProbability(device: Device): Promise<void> {
  const [batch, heads, rows] = [2, 3, 96];
  const shape = [batch, heads, rows, 4];
  using zeros = tensorFrom(device, new Float64Array(batch * heads * rows * 4), { shape });
  using ones = tensorFrom(device, new Float64Array(batch * heads * rows * 4).fill(1), { shape });
  const span = { start: 0, length: rows, step: 1 };
  const tile: Tile = { q: [span], k: [span], mask: masks.full().slices(rows, rows), scale: 1 };
  const countKeptPairs = async (overrides: Partial<AttentionDropout>): Promise<Float64Array> => {
    using out = allocate(device, shape);
    using lse = allocate(device, shape.slice(0, 3));
    device.kernels.fill(out, 0);
    device.kernels.fill(lse, Number.NEGATIVE_INFINITY);
    const modifiers = { dropout: { ...dropout, ...overrides } };
    device.kernels.attend({ out, lse }, zeros, { k: zeros, v: ones }, { ...tile, modifiers });
    const { probability } = modifiers.dropout;
    return Float64Array.from(
      (await out.read()).filter((_, i) => i % 4 === 0),
      (x) => x * rows * (1 - probability),
    );
  };
  const pairs = batch * heads * rows * rows;
  for (const probability of [0.05, 0.25, 0.8]) {
    const counts = await countKeptPairs({ probability });
    const total = counts.reduce((sum, count) => sum + count, 0);
    // Five standard deviations: one false alarm in a million. The random numbers are the same in every run.
    const maxDeviation = 5 * Math.sqrt(pairs * probability * (1 - probability));
    const expected = pairs * (1 - probability);
    check(
      Math.abs(total - expected) < maxDeviation,
      `expected ${expected} ± ${maxDeviation} of ${pairs} weights kept, received ${total}`,
    );
  }
  const firstCounts = await countKeptPairs({});
  for (const overrides of [{ seed: 1 }, { stream: 1 }, { batchOffset: 5 }]) {
    const numEqualCounts = (await countKeptPairs(overrides)).filter(
      (count, i) => Math.round(count) === Math.round(firstCounts[i]!),
    ).length;
    const name = Object.keys(overrides)[0]!;
    check(
      numEqualCounts < firstCounts.length / 4,
      `expected fewer than ${firstCounts.length / 4} rows with the same number of kept weights after ${name} changed, received ${numEqualCounts}`,
    );
  }
}
