import {
  attention,
  type AttentionModifiers,
  type Context,
  type Device,
  type DType,
  layoutOf,
  type Mask,
  masks,
  type Slice,
  type Tensor,
  defineOptions,
  type OptionsOf,
} from "@mosaic/core";
import { resolveBatchMaskUnchecked } from "@mosaic/core/context-parallel";
import { type Case, check, checkClose } from "../check.ts";
import { poisonMemory } from "../perturb/group.ts";
import { checkTrials, type Measurement } from "../measure/gate.ts";
import { type MaskMod } from "../oracle/attention.ts";
import { normals } from "../oracle/numbers.ts";
import { pairwise } from "../pairwise.ts";
import { runOnWorld } from "../world.ts";
import { type MaskTrial, maskTrials } from "./masks.ts";
import { measureBackend } from "./measure.ts";
import { createHeadsFirst, listPositions, takeRows } from "./shard.ts";
import type { Trial } from "./trial.ts";
import { formatMesh, placements, meshSize } from "./trials.ts";
import { type Arrangement, arrangementsOption, dtypesOption, makeWorldOption } from "../suite-options.ts";

// Batches whose samples attend to different keys: each sample has its own mask, or sequences are padded to one length.

/** Masks, lengths and padding of a batch, as passed to `attention`. */
interface BatchInput {
  readonly mask: Mask | readonly Mask[];
  readonly lengths: { readonly queries: readonly number[]; readonly keys: readonly number[] } | undefined;
  readonly padding: "left" | "right";
}

const attentionSizes = [
  { numHeads: 2, numKvHeads: 2, headDim: 16, batch: 3 },
  { numHeads: 4, numKvHeads: 2, headDim: 8, batch: 2 },
  { numHeads: 3, numKvHeads: 1, headDim: 5, batch: 4 },
] as const;

const trialCombinations = pairwise({
  placement: placements(),
  padding: ["left", "right", "none"],
  // One mask for all samples, a different kind for each, documents if there are as many queries as keys, or random
  // slices.
  masks: ["one", "different", "documents", "random"],
  size: attentionSizes,
  extent: [
    { queries: 41, keys: 41 },
    { queries: 3, keys: 3 },
    { queries: 23, keys: 38 },
    { queries: 38, keys: 23 },
  ],
  dtype: ["float32", "bfloat16"],
});
type BatchCombination = (typeof trialCombinations)[number];

/** Returns the query and key lengths of each sample: full, partial, 0 or tiny. In general, the two differ. */
function createLengths({ padding, masks: maskChoice, size, extent }: BatchCombination): BatchInput["lengths"] {
  if (padding === "none") return undefined;
  const { queries, keys } = extent;
  const takeBatch = (lengths: readonly number[]): readonly number[] => lengths.slice(0, size.batch);
  const queryLengths = takeBatch([Math.floor(queries / 2), queries, 0, 1]);
  const keyLengths = takeBatch([Math.floor((2 * keys) / 3), keys, keys, Math.min(2, keys)]);
  const hasSameLengths = maskChoice === "documents" && queries === keys;
  return { queries: queryLengths, keys: hasSameLengths ? queryLengths : keyLengths };
}

/** Returns the mask of each sample, for that sample's lengths. */
function selectMaskTrials(
  { masks: maskChoice, size, extent }: BatchCombination,
  lengths: BatchInput["lengths"],
): readonly MaskTrial[] {
  return Array.from({ length: size.batch }, (_, sample) => {
    const sampleMaskTrials = maskTrials(
      lengths?.queries[sample] ?? extent.queries,
      lengths?.keys[sample] ?? extent.keys,
      7,
    );
    const findTrial = (name: string, matchIndex = 0): MaskTrial =>
      sampleMaskTrials.filter((each) => each.mask.name.startsWith(name))[matchIndex] ?? sampleMaskTrials[1]!;
    if (maskChoice === "one") return sampleMaskTrials[1]!;
    if (maskChoice === "documents") return findTrial("documents", sample % 2);
    if (maskChoice === "random") return findTrial("sliceMask", sample % 3);
    return findTrial(["causal", "slidingWindow", "full", "inverseCausal"][sample]!);
  });
}

interface ResolvedBatch {
  readonly mask: readonly Slice[];
  readonly modifiers: AttentionModifiers | undefined;
  readonly maskMod: MaskMod;
}

const batchCache = new Map<BatchCombination, ResolvedBatch>();

/** Returns the cached batch of a combination. It is created once because references are cached by its `maskMod`. */
function resolveBatch(combination: BatchCombination): ResolvedBatch {
  let resolvedBatch = batchCache.get(combination);
  if (!resolvedBatch) batchCache.set(combination, (resolvedBatch = makeBatch(combination)));
  return resolvedBatch;
}

function makeBatch(combination: BatchCombination): ResolvedBatch {
  const { size, extent } = combination;
  const lengths = createLengths(combination);
  const padding = combination.padding === "left" ? "left" : "right";
  const sampleTrials = selectMaskTrials(combination, lengths);
  const mask = combination.masks === "one" ? sampleTrials[0]!.mask : sampleTrials.map((each) => each.mask);
  const batchInput: BatchInput = { mask, lengths, padding };
  const resolvedMask = resolveBatchMaskUnchecked("batch", batchInput, { batch: size.batch, ...extent });
  const maskMod: MaskMod = (query, key, sample = 0) => {
    const [queries, keys] = [lengths?.queries[sample] ?? extent.queries, lengths?.keys[sample] ?? extent.keys];
    const [q, k] = padding === "left" ? [query - extent.queries + queries, key - extent.keys + keys] : [query, key];
    return q >= 0 && q < queries && k >= 0 && k < keys && sampleTrials[sample]!.maskMod(q, k);
  };
  return { ...resolvedMask, maskMod };
}

/**
 * Returns trials of batches on a mesh. Placement, side of the padding, choice of masks, head sizes, sequence lengths
 * and dtype are combined pairwise: any two values of different parameters occur together in some trial.
 */
export function batchTrials(
  { mesh, axes }: Pick<Arrangement, "mesh" | "axes">,
  dtypes: readonly DType[] = ["float32", "bfloat16"],
): Trial[] {
  const combinations = trialCombinations.filter(({ dtype }) => dtypes.includes(dtype));
  return combinations.map((combination, i) => {
    const { placement, padding, masks: maskChoice, size, extent, dtype } = combination;
    const { mask, modifiers, maskMod } = resolveBatch(combination);
    const { numHeads, numKvHeads, headDim, batch } = size;
    const heading = `batch of ${batch}, ${maskChoice} masks, padding ${padding}, ${extent.queries}×${extent.keys}`;
    return {
      name: `${heading}, ${numHeads}/${numKvHeads} heads of size ${headDim}, ${placement.name}, ${dtype}`,
      mesh,
      axes,
      ...size,
      dtype,
      scale: 1 / Math.sqrt(headDim),
      mask,
      ...(modifiers && { modifiers }),
      maskMod,
      queries: { length: extent.queries, placement },
      keys: { length: extent.keys, placement },
      seed: 40 + i,
    };
  });
}

export const batchSuiteOptions = defineOptions("batchSuite", {
  /** Opens the worlds. */
  makeWorld: makeWorldOption,
  /** Arrangements to test, of any size. */
  arrangements: arrangementsOption,
  /** Dtypes to test. Default ["float32", "bfloat16"]. */
  dtypes: dtypesOption,
});
/** Options of `batchSuite`. */
export type BatchSuiteOptions = OptionsOf<typeof batchSuiteOptions>;

/**
 * Returns test cases for batches whose samples attend to different keys. The forward and all gradients must be as
 * accurate as on one device, for masks and lengths of each sample, padded on the left or on the right. Values in the
 * padding must not affect any result.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { world } from "@mosaic/collectives-local";
 * import { alongOneAxis, batchSuite, type MakeWorld } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
 *   world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });
 * const cases = batchSuite({ makeWorld, arrangements: alongOneAxis((axis) => ring({ axis }), [2]) });
 * await cases[1]!.run();
 * ```
 */
export function batchSuite(options: BatchSuiteOptions): Case[] {
  const parsedOptions = batchSuiteOptions.parse(options);
  return parsedOptions.arrangements.flatMap((arrangement) => {
    const title = `${arrangement.backend.name} on ${formatMesh(arrangement.mesh)}`;
    return [
      {
        name: `${title}: per-sample masks and lengths, as accurate as on one device`,
        run: () => checkExactness(parsedOptions, arrangement),
      },
      { name: `${title}: NaN in the padding has no effect`, run: () => checkPadding(parsedOptions, arrangement) },
    ];
  });
}

async function checkExactness({ makeWorld, dtypes }: BatchSuiteOptions, arrangement: Arrangement): Promise<void> {
  const { mesh, backend } = arrangement;
  const trials = batchTrials(arrangement, dtypes);
  const measurementsByRank = await runOnWorld(
    makeWorld,
    { size: meshSize(mesh), mesh, wrapDevice: poisonMemory },
    async (ctx) => {
      const measurements: Measurement[] = [];
      for (const trial of trials) measurements.push(await measureBackend(ctx, backend, trial));
      return measurements;
    },
  );
  checkTrials(backend.name, measurementsByRank);
}

const paddedBatchSizes = { batch: 3, numHeads: 4, numKvHeads: 2, length: 19, headDim: 8, lengths: [7, 19, 0] } as const;

/** Checks through `attention` and its backward that results are the same with NaN and with 0 in the padding. */
async function checkPadding({ makeWorld }: BatchSuiteOptions, arrangement: Arrangement): Promise<void> {
  const { mesh, backend } = arrangement;
  await runOnWorld(makeWorld, { size: meshSize(mesh), mesh }, async (ctx) => {
    for (const padding of ["left", "right"] as const) {
      const [zeroPaddedRun, nanPaddedRun] = [
        await attendPadded(ctx, arrangement, 0, padding),
        await attendPadded(ctx, arrangement, NaN, padding),
      ];
      for (const name of ["out", "lse", "dq", "dk", "dv"] as const) {
        const description = `${backend.name}, rank ${ctx.rank}, padding ${padding}: ${name}`;
        // Not compared bitwise, because a kernel may sum in another order if there are NaNs.
        checkClose(
          nanPaddedRun.values[name],
          zeroPaddedRun.values[name],
          1e-5,
          `${description} with NaN in the padding`,
        );
        const emptyValue = name === "lse" ? Number.NEGATIVE_INFINITY : 0;
        const width = name === "lse" ? 1 : paddedBatchSizes.headDim;
        const wrongIndex = zeroPaddedRun.values[name].findIndex(
          (value, i) => zeroPaddedRun.isPadding(Math.floor(i / width), name) && value !== emptyValue,
        );
        check(
          wrongIndex < 0,
          `${description} in the padding: expected ${emptyValue}, received ${zeroPaddedRun.values[name][wrongIndex]}`,
        );
      }
    }
  });
}

interface PaddedRun {
  readonly values: Readonly<Record<"out" | "lse" | "dq" | "dk" | "dv", Float32Array>>;
  /** Whether a row [B,H,S] of this rank's shard is padding. */
  isPadding(row: number, name: string): boolean;
}

// oxlint-disable-next-line max-params -- where, by what, and what lies where
async function attendPadded(
  ctx: Context,
  { axes, backend }: Arrangement,
  paddingValue: number,
  padding: "left" | "right",
): Promise<PaddedRun> {
  const { batch, numHeads, numKvHeads, length, headDim, lengths } = paddedBatchSizes;
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes, length, placement: placements()[1]! });
  const positions = listPositions(layout.spans(ctx.mesh.coordinate));
  const isToken = (sample: number, position: number): boolean =>
    padding === "right" ? position < lengths[sample]! : position >= length - lengths[sample]!;
  const createShard = (device: Device, headCount: number, seed: number): Tensor => {
    const allValues = normals(batch * headCount * length * headDim, seed).map((value, i) => {
      const row = Math.floor(i / headDim);
      return isToken(Math.floor(row / length / headCount), row % length) ? value : paddingValue;
    });
    const shardValues = takeRows(allValues, positions, { rows: length, width: headDim });
    return createHeadsFirst(device, shardValues, [batch, headCount, positions.length, headDim], "float32");
  };
  using q = createShard(ctx.device, numHeads, 1);
  using k = createShard(ctx.device, numKvHeads, 2);
  using v = createShard(ctx.device, numKvHeads, 3);
  using dOut = createShard(ctx.device, numHeads, 4);
  for (const x of [q, k, v]) x.requiresGrad = true;
  const { out, lse } = attention(ctx, q, k, v, {
    backend,
    mask: masks.causal(),
    lengths: { queries: lengths, keys: lengths },
    padding,
    queries: layout,
    keys: layout,
    returnLse: true,
  });
  out.backward(dOut);
  const tensors = { out, lse, dq: q.grad!, dk: k.grad!, dv: v.grad! };
  const resultValues = await Promise.all(Object.values(tensors).map((x) => x.read()));
  const names = Object.keys(tensors);
  for (const x of Object.values(tensors)) x[Symbol.dispose]();
  return {
    values: Object.fromEntries(names.map((name, i) => [name, resultValues[i]!])) as PaddedRun["values"],
    isPadding(row, name) {
      const headCount = name === "dk" || name === "dv" ? numKvHeads : numHeads;
      return !isToken(Math.floor(row / positions.length / headCount), positions[row % positions.length]!);
    },
  };
}
