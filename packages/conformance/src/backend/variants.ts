import {
  attention,
  type AttentionBackend,
  type AttentionOptions,
  type Context,
  dataParallelRank,
  dataParallelSize,
  fromArray,
  layoutOf,
  masks,
  type Tensor,
  defineOptions,
  type OptionsOf,
} from "@mosaic/core";
import { type Case, magnitude } from "../check.ts";
import { perturbContext, poisonMemory } from "../perturb/group.ts";
import { checkTrials, computeErrorSum, measureMagnitude, type Measurement } from "../measure/gate.ts";
import {
  attentionOracle,
  attentionOracleBackward,
  type AttentionProblem,
  type MaskMod,
  type OracleForward,
  type OracleBackward,
} from "../oracle/attention.ts";
import { normals, uniforms } from "../oracle/numbers.ts";
import type { OracleModifiers } from "../oracle/score-modifiers.ts";
import { pairwise } from "../pairwise.ts";
import { type MakeWorld, runOnWorld } from "../world.ts";
import { type MaskTrial, maskTrials } from "./masks.ts";
import { createHeadsFirst, listPositions, takeRows } from "./shard.ts";
import { formatMesh, meshSize, placements } from "./trials.ts";
import { type Arrangement, arrangementsOption, makeWorldOption } from "../suite-options.ts";

// Variants of attention, through `attention` and its backward: on some ranks, and on one device in one piece.

const attentionSizes = [
  { numHeads: 2, numKvHeads: 2, headDim: 16, batch: 1 },
  { numHeads: 4, numKvHeads: 2, headDim: 8, batch: 2 },
  { numHeads: 3, numKvHeads: 1, headDim: 5, batch: 3 },
] as const;

const factors = {
  variant: ["sinks", "softcap", "slopes", "dropout", "value head size", "all of them"],
  mask: ["full", "causal", "slidingWindow", "prefix", "documents", "sliceMask", "lengths"],
  placement: placements(),
  size: attentionSizes,
  extent: [
    { queries: 41, keys: 41 },
    { queries: 3, keys: 3 },
    { queries: 23, keys: 38 },
    { queries: 38, keys: 23 },
  ],
  dtype: ["float32", "bfloat16"],
} as const;

/** One level of each factor, and the index of an arrangement. */
type VariantTrial = { readonly [Name in keyof typeof factors]: (typeof factors)[Name][number] } & {
  readonly arrangement: number;
};

/**
 * Returns the trials of each arrangement. Over all of them, any two levels of different factors occur together. The
 * arrangement is one of the factors.
 */
function variantTrials(arrangements: number): readonly (readonly VariantTrial[])[] {
  const arrangementIndices = Array.from({ length: arrangements }, (_, i) => i);
  const trials: readonly VariantTrial[] = pairwise({ arrangement: arrangementIndices, ...factors });
  return arrangementIndices.map((arrangementIndex) =>
    trials.filter(({ arrangement }) => arrangement === arrangementIndex),
  );
}

const SINK_SEED = 11;

/** Seed of a context, and its data-parallel rank. Ranks that differ in it have different samples. */
interface RandomSource {
  readonly seed: number;
  readonly dp: number;
}

/** Returns what a trial adds to plain attention. Dropout uses the first random stream of a context. */
function createModifiers(
  { variant, size }: VariantTrial,
  { seed, dp }: RandomSource,
): OracleModifiers & { readonly hasWideValues: boolean } {
  const hasVariant = (name: VariantTrial["variant"]): boolean => variant === name || variant === "all of them";
  const nextUniform = uniforms(SINK_SEED);
  const drawPerHead = (min: number, max: number): number[] =>
    Array.from({ length: size.numHeads }, () => Math.fround(min + (max - min) * nextUniform()));
  return {
    ...(hasVariant("sinks") && { sinks: drawPerHead(-2, 2) }),
    ...(hasVariant("softcap") && { softcap: 1.5 }),
    ...(hasVariant("slopes") && { slopes: drawPerHead(0.02, 0.5) }),
    ...(hasVariant("dropout") && { dropout: { probability: 0.3, seed, stream: 0, batchOffset: dp * size.batch } }),
    hasWideValues: hasVariant("value head size"),
  };
}

/** Mask options of `attention`, and the definition of the visible pairs. */
interface MaskChoice {
  readonly options: Pick<AttentionOptions, "mask" | "lengths" | "padding">;
  readonly maskMod: MaskMod;
}

function selectMask({ mask: name, size, extent: { queries, keys } }: VariantTrial): MaskChoice {
  if (name !== "lengths") {
    const extentTrials = maskTrials(queries, keys, 3);
    const { mask, maskMod }: MaskTrial =
      extentTrials.find((each) => each.mask.name.startsWith(name)) ?? extentTrials[1]!;
    return { options: { mask }, maskMod };
  }
  const createSampleLengths = (length: number): number[] => [Math.ceil(length / 2), length, 1].slice(0, size.batch);
  const lengths = { queries: createSampleLengths(queries), keys: createSampleLengths(keys) };
  const maskMod: MaskMod = (query, key, sample = 0) =>
    query < lengths.queries[sample]! &&
    key < lengths.keys[sample]! &&
    key - lengths.keys[sample]! <= query - lengths.queries[sample]!;
  return { options: { mask: masks.causal(), lengths, padding: "right" }, maskMod };
}

/** A trial with its complete tensors and the float64 results. */
interface PreparedTrial extends OracleForward, OracleBackward {
  readonly name: string;
  readonly trial: VariantTrial;
  readonly mask: MaskChoice;
  readonly modifiers: OracleModifiers;
  readonly problem: AttentionProblem & { readonly valueHeadDim: number };
  readonly dOut: Float64Array;
}

function prepareTrial(trial: VariantTrial, trialIndex: number, randomSource: RandomSource): PreparedTrial {
  const { variant, placement, size, extent, dtype } = trial;
  const { batch, numHeads, numKvHeads, headDim } = size;
  const { hasWideValues, ...modifiers } = createModifiers(trial, randomSource);
  const mask = selectMask(trial);
  const valueHeadDim = hasWideValues ? [24, 5, 9][attentionSizes.indexOf(size)]! : headDim;
  const createValues = (headCount: number, rows: number, width: number, seedOffset: number): Float64Array =>
    normals(batch * headCount * rows * width, 4 * trialIndex + seedOffset, dtype);
  const problem = {
    ...size,
    ...extent,
    valueHeadDim,
    scale: 1 / Math.sqrt(headDim),
    maskMod: mask.maskMod,
    modifiers,
    q: createValues(numHeads, extent.queries, headDim, 0),
    k: createValues(numKvHeads, extent.keys, headDim, 1),
    v: createValues(numKvHeads, extent.keys, valueHeadDim, 2),
  };
  const dOut = createValues(numHeads, extent.queries, valueHeadDim, 3);
  const heading = `${variant}, ${trial.mask} ${extent.queries}×${extent.keys}, ${numHeads}/${numKvHeads} heads of size ${headDim}`;
  const name = `${heading} and ${valueHeadDim}, batch ${batch}, ${placement.name}, ${dtype}`;
  return {
    name,
    trial,
    mask,
    modifiers,
    problem,
    dOut,
    ...attentionOracle(problem),
    ...attentionOracleBackward(problem, dOut),
  };
}

const resultNames = ["out", "lse", "dq", "dk", "dv", "dSinks"] as const;
type VariantNumbers<Values> = Readonly<Record<(typeof resultNames)[number], Values>>;

/** Backend of a run, and the mesh axes along which its rows are sharded. */
interface VariantRun {
  readonly backend: AttentionBackend | "local";
  readonly axes: readonly string[];
}

/** Returns the layouts of queries and keys, and the rows of each that are on this rank. */
function createLayouts(ctx: Context, { trial }: PreparedTrial, axes: readonly string[]) {
  const createLayoutAndRows = (length: number) => {
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes, length, placement: trial.placement });
    return { layout, rows: listPositions(layout.spans(ctx.mesh.coordinate)) };
  };
  return { queries: createLayoutAndRows(trial.extent.queries), keys: createLayoutAndRows(trial.extent.keys) };
}

/** Returns the given rows of complete results. */
function selectResults(
  { problem }: PreparedTrial,
  fullResults: VariantNumbers<ArrayLike<number>>,
  { queries, keys }: { readonly queries: readonly number[]; readonly keys: readonly number[] },
): VariantNumbers<Float64Array> {
  const [numQueries, numKeys] = [problem.queries, problem.keys];
  const { headDim, valueHeadDim } = problem;
  return {
    out: takeRows(fullResults.out, queries, { rows: numQueries, width: valueHeadDim }),
    lse: takeRows(fullResults.lse, queries, { rows: numQueries, width: 1 }),
    dq: takeRows(fullResults.dq, queries, { rows: numQueries, width: headDim }),
    dk: takeRows(fullResults.dk, keys, { rows: numKeys, width: headDim }),
    dv: takeRows(fullResults.dv, keys, { rows: numKeys, width: valueHeadDim }),
    dSinks: Float64Array.from(fullResults.dSinks),
  };
}

async function runVariant(
  ctx: Context,
  preparedTrial: PreparedTrial,
  variantRun: VariantRun,
): Promise<VariantNumbers<Float32Array>> {
  const { problem, trial, mask, modifiers } = preparedTrial;
  const { numHeads, numKvHeads, batch, headDim, valueHeadDim } = problem;
  const { queries, keys } = createLayouts(ctx, preparedTrial, variantRun.axes);
  const createShard = (
    values: Float64Array,
    headCount: number,
    shardRows: { rows: readonly number[]; length: number; width: number },
  ) => {
    const shardValues = takeRows(values, shardRows.rows, { rows: shardRows.length, width: shardRows.width });
    return createHeadsFirst(
      ctx.device,
      shardValues,
      [batch, headCount, shardRows.rows.length, shardRows.width],
      trial.dtype,
    );
  };
  const queryRows = { rows: queries.rows, length: problem.queries };
  const keyRows = { rows: keys.rows, length: problem.keys };
  using q = createShard(problem.q, numHeads, { ...queryRows, width: headDim });
  using k = createShard(problem.k, numKvHeads, { ...keyRows, width: headDim });
  using v = createShard(problem.v, numKvHeads, { ...keyRows, width: valueHeadDim });
  using dOut = createShard(preparedTrial.dOut, numHeads, { ...queryRows, width: valueHeadDim });
  using sinks = fromArray(ctx, modifiers.sinks ?? new Array<number>(numHeads).fill(0), [numHeads]);
  using slopes = fromArray(ctx, modifiers.slopes ?? new Array<number>(numHeads).fill(0), [numHeads]);
  for (const x of [q, k, v, sinks]) x.requiresGrad = true;
  const { out, lse } = attention(ctx, q, k, v, {
    backend: variantRun.backend,
    ...mask.options,
    scale: problem.scale,
    ...(modifiers.sinks && { sinks }),
    ...(modifiers.softcap !== undefined && { softcap: modifiers.softcap }),
    ...(modifiers.slopes && { alibiSlopes: slopes }),
    ...(modifiers.dropout && { dropout: modifiers.dropout.probability }),
    queries: queries.layout,
    keys: keys.layout,
    returnLse: true,
  });
  out.backward(dOut);
  const results: readonly (Tensor | null)[] = [out, lse, q.grad, k.grad, v.grad, sinks.grad];
  if (sinks.grad) for (const axis of variantRun.axes) ctx.mesh.group(axis).allReduce(sinks.grad, "sum").wait();
  const resultValues = await Promise.all(results.map(async (x) => (x ? await x.read() : new Float32Array(0))));
  for (const x of results) x?.dispose();
  return Object.fromEntries(resultNames.map((name, i) => [name, resultValues[i]!])) as VariantNumbers<Float32Array>;
}

async function measureVariant(
  ctx: Context,
  preparedTrial: PreparedTrial,
  { axes, backend }: Arrangement,
): Promise<Measurement> {
  // Each context numbers its random streams from 0, so that both runs drop the same weights.
  const createContext = (): Context => perturbContext(ctx, { completion: "late", seed: 3 });
  const actual = await runVariant(createContext(), preparedTrial, { backend, axes });
  const local = await runVariant(createContext(), preparedTrial, { backend: "local", axes: [] });
  const { queries, keys } = createLayouts(ctx, preparedTrial, axes);
  const expectedShard = selectResults(preparedTrial, preparedTrial, { queries: queries.rows, keys: keys.rows });
  const results = resultNames.map((name) => [
    name,
    {
      measuredError: computeErrorSum(actual[name], expectedShard[name]),
      localError: computeErrorSum(local[name], preparedTrial[name]),
      expected: measureMagnitude(name === "dSinks" ? preparedTrial.dSinkMagnitudeSums : preparedTrial[name]),
      weightDtype: preparedTrial.trial.dtype,
    },
  ]);
  return { trial: preparedTrial.name, results: Object.fromEntries(results), lse: magnitude(preparedTrial.lse) };
}

export const variantSuiteOptions = defineOptions("variantSuite", {
  /** Opens the worlds. */
  makeWorld: makeWorldOption,
  /** Arrangements to test, of any size. */
  arrangements: arrangementsOption,
});
/** Options of `variantSuite`. */
export type VariantSuiteOptions = OptionsOf<typeof variantSuiteOptions>;

/**
 * Returns test cases for variants of attention: sinks, softcap, ALiBi slopes, dropout, values of another head size, and
 * all of them at once. The forward and all gradients must be as accurate as on one device, so the same weights are
 * dropped on every mesh. Arrangement, variant, mask, placement, head sizes, lengths and dtype are combined pairwise
 * over all arrangements.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { world } from "@mosaic/collectives-local";
 * import { alongOneAxis, type MakeWorld, variantSuite } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
 *   world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });
 * const cases = variantSuite({ makeWorld, arrangements: alongOneAxis((axis) => ring({ axis }), [1, 2]) });
 * await cases[1]!.run();
 * ```
 */
export function variantSuite(options: VariantSuiteOptions): Case[] {
  const { makeWorld, arrangements } = variantSuiteOptions.parse(options);
  const trials = variantTrials(arrangements.length);
  return arrangements.map((arrangement, i) => ({
    name: `${arrangement.backend.name} on ${formatMesh(arrangement.mesh)}: ${trials[i]!.length} attention variants, as accurate as on one device`,
    run: () => checkVariants(makeWorld, arrangement, trials[i]!),
  }));
}

async function checkVariants(
  makeWorld: MakeWorld,
  arrangement: Arrangement,
  trials: readonly VariantTrial[],
): Promise<void> {
  const { mesh, backend } = arrangement;
  const preparedTrials = new Map<string, PreparedTrial>();
  const getOrPrepareTrial = (i: number, randomSource: RandomSource): PreparedTrial => {
    const key = `${i} ${randomSource.dp}`;
    const preparedTrial = preparedTrials.get(key) ?? prepareTrial(trials[i]!, i, randomSource);
    preparedTrials.set(key, preparedTrial);
    return preparedTrial;
  };
  const rankResults = await runOnWorld(
    makeWorld,
    { size: meshSize(mesh), mesh, wrapDevice: poisonMemory },
    async (ctx) => {
      const dp = dataParallelRank(ctx.mesh);
      const measurements: Measurement[] = [];
      for (const i of trials.keys()) {
        measurements.push(await measureVariant(ctx, getOrPrepareTrial(i, { seed: ctx.seed, dp }), arrangement));
      }
      return { dp, measurements };
    },
  );
  for (let dp = 0; dp < dataParallelSize({ shape: mesh }); dp++) {
    const sequenceRanks = rankResults.filter((rank) => rank.dp === dp);
    checkTrials(
      backend.name,
      sequenceRanks.map(({ measurements }) => measurements),
    );
  }
}
