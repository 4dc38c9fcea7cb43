import {
  broadcastObject,
  checkContext,
  type Context,
  defineOptions,
  type DType,
  option,
  type Option,
  type OptionsOf,
  type OptionSettings,
  type PresenceOf,
} from "@mosaic/core";
import { countAvailableCores } from "./available-cores.ts";
import { fitAttention, fitBytes, leastSquares } from "./fit.ts";
import { type MeasuredRanks, timeCopies, timeExchanges, timeInterleaving, timeLockstep, timeTiles } from "./measure.ts";
import { timeHost } from "./measure-host.ts";
import { fitStepOverheads } from "./measure-steps.ts";
import type { AttentionSpeed, KernelSpeeds, Link, Profile, SharedCores } from "./profile.ts";
import { profiles } from "./profiles.ts";

/** Creates an option for a non-empty array, each element of which `elementOption` accepts. */
function nonEmptyArray<Value, const S extends OptionSettings<readonly NoInfer<Value>[]>>(
  elementOption: Option<Value>,
  optionSettings?: S,
): Option<readonly Value[], PresenceOf<S>> {
  const arrayOption = option.array(elementOption);
  const accepts = (value: unknown): value is readonly Value[] => arrayOption.accepts(value) && value.length > 0;
  return option.custom(`a non-empty array, each element ${elementOption.expected}`, accepts, optionSettings);
}

export const calibrateOptions = defineOptions("calibrate", {
  /** Ranks that this process drives: all of a `world(n)`, or its own rank under the launcher. */
  contexts: nonEmptyArray(option.custom("a Context returned by init", option.hasMethods<Context>("assertOpen"))),
  /** Name of the profile. Default "calibrated". */
  name: option.string({ default: "calibrated" }),
  /** Data types in which attention is measured. Default ["float32", "bfloat16"]. */
  dtypes: nonEmptyArray(option.dtype(), { default: ["float32", "bfloat16"] }),
  /** Head sizes for which attention is measured. Default [64, 128]. */
  headDims: nonEmptyArray(option.integer({ min: 1, max: 256 }), { default: [64, 128] }),
  /** Number of repetitions of each measurement, of which the median is used. Default 5. */
  repetitions: option.integer({ min: 1, max: 1000, default: 5 }),
  /** Threads of each rank's device. Default 1. */
  threads: option.integer({ min: 1, default: 1 }),
  /** Cores of this machine. Default: those that the ranks may run on. */
  cores: option.number({ above: 0, optional: true }),
});
/** Options of `calibrate`. */
export type CalibrateOptions = OptionsOf<typeof calibrateOptions>;

const KIB = 2 ** 10;
const NUM_CALIBRATION_HEADS = 4;
const HEAD_DIM = 64;

/**
 * Rows × keys of the measured tiles: short and long in either dimension, with more tiles that are too long for inner
 * caches. Errors are relative, and most of a step is spent on long tiles.
 */
const tileShapes = [
  [64, 1024],
  [1024, 64],
  [256, 256],
  [512, 512],
  [1024, 1024],
  [2048, 1024],
  [2048, 2048],
] as const;

/**
 * Measures this machine: kernels with several tile shapes, messages of several sizes, and the speed of each rank when
 * all work at once and when they wait for each other. Collective: every process calls it with its contexts, and all
 * receive the same profile. Run it with the ranks and threads that are to be predicted, on an idle machine. With the
 * default options and two ranks, it takes 47 seconds of processor time on two cores of an AMD EPYC. The time grows with
 * the numbers of repetitions, dtypes and head sizes.
 *
 * Kernels are timed by the trace of their device, on as many ranks at once as have a core to themselves; links by
 * exchanges around all ranks; waits by exchanges concurrent with kernels; the host by a small attention and by
 * exchanges; the rest by steps of all ranks. The median of several repetitions is used, because a step is long enough
 * to include occasional slowdowns of kernels.
 *
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { calibrate } from "@mosaic/planner";
 * const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
 * const profile = await calibrate({ contexts, dtypes: ["float32"], headDims: [16], repetitions: 1 });
 * Object.keys(profile.kernels.attend); // => ["float32"]
 * await Promise.all(contexts.map((ctx) => ctx.close()));
 * ```
 * @throws OptionError without contexts, or for unknown options or invalid values, before anything is measured.
 */
export async function calibrate(options: CalibrateOptions): Promise<Profile> {
  const { contexts, name, dtypes, headDims, repetitions, threads, cores } = calibrateOptions.parse(options);
  for (const ctx of contexts) checkContext("calibrate: contexts", ctx);
  const [firstContext] = contexts as readonly [Context, ...Context[]];
  // As many ranks as this machine has cores for.
  const coresPerNode = (cores ?? (await countAvailableCores(contexts))) / threads;
  const numConcurrentRanks = Math.max(1, Math.min(firstContext.size, Math.floor(coresPerNode)));
  const measuredRanks: MeasuredRanks = { contexts, repetitions, numConcurrentRanks };
  const copySpeed = fitBytes(await timeCopies(measuredRanks, [8 * KIB, 1024 * KIB, 8192 * KIB]));
  const speeds = await measureAttention(measuredRanks, { dtypes, headDims, launch: copySpeed.latency });
  const defaultProfile = profiles["cpu-local"];
  const link =
    firstContext.size > 1 ? await measureLink(measuredRanks, coresPerNode) : defaultProfile.links["intra-node"];
  const lockstepParameters =
    firstContext.size > 1 ? await measureLockstep(measuredRanks, { coresPerNode, link, dtype: dtypes[0]! }) : {};
  const profile: Profile = {
    ...defaultProfile,
    name,
    ranksPerNode: firstContext.size,
    kernels: { ...defaultProfile.kernels, launch: copySpeed.latency, bandwidth: copySpeed.bandwidth, ...speeds },
    links: { ...defaultProfile.links, "intra-node": link },
    ...(await timeHost(measuredRanks)),
    cores: { perNode: coresPerNode, ...lockstepParameters },
  };
  const shape = { dtype: dtypes[0]!, headDim: headDims[0]!, numHeads: NUM_CALIBRATION_HEADS };
  const correctedProfile = firstContext.size > 1 ? await fitStepOverheads(measuredRanks, profile, shape) : profile;
  return await broadcastProfile(contexts, correctedProfile);
}

interface KernelCases {
  readonly dtypes: readonly DType[];
  readonly headDims: readonly number[];
  readonly launch: number;
}

async function measureAttention(
  measuredRanks: MeasuredRanks,
  { dtypes, headDims, launch }: KernelCases,
): Promise<Pick<KernelSpeeds, "attend" | "attendBackward">> {
  const kernelCases = dtypes.flatMap((dtype) =>
    (["attend", "attendBackward"] as const).map((kind) => ({ dtype, kind })),
  );
  const tiles = kernelCases.flatMap(({ dtype, kind }) =>
    headDims.flatMap((headDim) =>
      tileShapes.map(([rows, keys]) => ({ dtype, kind, numHeads: NUM_CALIBRATION_HEADS, rows, keys, headDim })),
    ),
  );
  // The cost of interleaved heads depends on their number. With four, rows are far enough apart.
  const squareTile = { numHeads: NUM_CALIBRATION_HEADS, rows: 1024, keys: 1024, headDim: headDims[0]! };
  const samples = await timeTiles(measuredRanks, tiles);
  const interleavingSlowdowns = await timeInterleaving(
    measuredRanks,
    kernelCases.map((kind) => ({ ...kind, ...squareTile })),
  );
  const speeds = { attend: {}, attendBackward: {} } as Record<
    "attend" | "attendBackward",
    Record<string, AttentionSpeed>
  >;
  for (const [i, { dtype, kind }] of kernelCases.entries()) {
    const matchingSamples = samples.filter((_, j) => tiles[j]!.dtype === dtype && tiles[j]!.kind === kind);
    const fittedSpeed = fitAttention(matchingSamples, kind === "attend" ? 4 : 10, launch);
    speeds[kind][dtype] = { ...fittedSpeed, interleaved: Math.max(1, interleavingSlowdowns[i]!) };
  }
  return speeds;
}

/**
 * Measures a link by exchanges, in which a rank's thread sends and receives alternately and shares the cores with those
 * of all other ranks.
 */
async function measureLink(measuredRanks: MeasuredRanks, coresPerNode: number): Promise<Link> {
  const samples = await timeExchanges(measuredRanks, [64, 64 * KIB, 512 * KIB, 2048 * KIB]);
  const coreShare = Math.min(1, coresPerNode / measuredRanks.contexts[0]!.size);
  const { latency, bandwidth } = fitBytes(samples.map(({ bytes, seconds }) => ({ bytes: 2 * bytes, seconds })));
  return { latency, bandwidth: bandwidth / coreShare, sharedBy: 1, duplex: false };
}

interface LockstepCases {
  readonly coresPerNode: number;
  readonly link: Link;
  readonly dtype: DType;
}

/** Measures the time lost when ranks wait for each other, beyond the work itself on the cores that they share. */
async function measureLockstep(
  measuredRanks: MeasuredRanks,
  { coresPerNode, link, dtype }: LockstepCases,
): Promise<Pick<SharedCores, "efficiency" | "wait">> {
  const tiles = [256, 512, 1024].map((length) => ({
    ...{ kind: "attend" as const, dtype, numHeads: NUM_CALIBRATION_HEADS, headDim: HEAD_DIM },
    ...{ rows: length, keys: length },
  }));
  const samples = await timeLockstep(measuredRanks, tiles);
  const ranksPerCore = measuredRanks.contexts[0]!.size / coresPerNode;
  const workSeconds = samples.map(({ kernelSeconds: kernel, bytes }) => {
    const messageSeconds = (2 * bytes) / link.bandwidth;
    // With spare cores, a message is transferred concurrently with the kernel.
    return ranksPerCore < 1 ? Math.max(kernel, messageSeconds) : ranksPerCore * (kernel + messageSeconds);
  });
  const { factors } = leastSquares(
    workSeconds.map((seconds) => [seconds, 1]),
    samples.map(({ seconds }, i) => Math.max(0, seconds - workSeconds[i]!)),
    samples.map(({ seconds }) => seconds),
  );
  const [lossRatio, waitSeconds] = factors as [number, number];
  return { efficiency: 1 / (1 + lossRatio), wait: waitSeconds };
}

/**
 * Returns the profile of rank 0 on every rank, because ranks that share a machine may measure slightly different
 * values.
 */
async function broadcastProfile(contexts: readonly Context[], profile: Profile): Promise<Profile> {
  const broadcastProfiles = contexts.map((ctx) => broadcastObject(ctx, profile, 0, { label: "calibrate" }));
  return (await Promise.all(broadcastProfiles))[0]!;
}
