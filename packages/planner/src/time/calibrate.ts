import { availableParallelism } from "node:os";
import {
  checkOptionNames,
  type Context,
  type DType,
  dtypeBytes,
  fromArray,
  OptionError,
  checkContext,
  expectValue,
} from "@mosaic/core";
import { type AttentionSample, fitAttention, fitBytes } from "./fit.ts";
import {
  type MeasuredRanks,
  timeCopies,
  timeEnqueue,
  timeExchanges,
  timeTiles,
  timeConcurrentTiles,
  type TileShape,
} from "./measure.ts";
import type { AttentionSpeed, KernelSpeeds, Link, Profile } from "./profile.ts";
import { profiles } from "./profiles.ts";

export interface CalibrateOptions {
  /** The ranks that this process drives: all of a `world(n)`, or its own one under the launcher. */
  readonly contexts: readonly Context[];
  /** "calibrated" if absent. */
  readonly name?: string;
  /** What attention is measured in; float32 and bfloat16 if absent. */
  readonly dtypes?: readonly DType[];
  /** Sizes of heads; 64 and 128 if absent. */
  readonly headDims?: readonly number[];
  /** How often each measurement is repeated, for the best of them to count; 4 if absent. */
  readonly repetitions?: number;
  /** Threads of each rank's device; 1 if absent. */
  readonly threads?: number;
  /** Cores of this machine; the system's count if absent. */
  readonly cores?: number;
}

const KIB = 2 ** 10;
const HEADS = 2;

/** Rows × keys of the tiles that are measured: short and long in either dimension, and too long for inner caches. */
const shapes = [
  [64, 64],
  [64, 1024],
  [1024, 64],
  [256, 256],
  [512, 512],
  [2048, 2048],
] as const;

/**
 * Measures the machine at hand, in a few seconds: kernels over a handful of tile shapes, messages of several sizes, and how
 * much is left for each rank when all work at once. Collective: every process calls it with its contexts, and all get the
 * same profile. Run it with the ranks and threads that are to be predicted, on an idle machine.
 *
 * Kernels are timed by their device's trace, alone and with all ranks at work; links by exchanges around all ranks; the host
 * by a small attention. Of several repetitions the best counts: other load only ever slows things down.
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
 * @throws OptionError without contexts, or with options that do not exist or cannot be, before anything is measured.
 */
export async function calibrate(options: CalibrateOptions): Promise<Profile> {
  expectValue(
    "calibrate",
    Array.isArray((options as Partial<CalibrateOptions> | null | undefined)?.contexts),
    "options with contexts",
    options,
  );
  for (const ctx of options.contexts) checkContext("calibrate", ctx);
  const { contexts, name = "calibrated", dtypes = ["float32", "bfloat16"], headDims = [64, 128] } = options;
  const optionNames = ["contexts", "name", "dtypes", "headDims", "repetitions", "threads", "cores"] as const;
  checkOptionNames("calibrate", options, optionNames satisfies readonly (keyof CalibrateOptions)[]);
  const [first] = contexts;
  if (!first) throw new OptionError({ where: "calibrate", expected: "contexts", received: "none" });
  checkOptions({ ...options, name, dtypes, headDims });
  const measured: MeasuredRanks = { contexts, repetitions: options.repetitions ?? 4 };
  const copies = fitBytes(await timeCopies(measured, [8 * KIB, 1024 * KIB, 8192 * KIB]));
  const speeds = await measureAttention(measured, { dtypes, headDims, launch: copies.latency });
  const probe: TileShape = {
    kind: "attend",
    dtype: dtypes[0]!,
    numHeads: HEADS,
    rows: 768,
    keys: 768,
    headDim: headDims[0]!,
  };
  const parallel = first.size > 1 ? await timeConcurrentTiles(measured, probe) : 1;
  // As many ranks as this machine has cores for.
  const here = (options.cores ?? availableParallelism()) / (options.threads ?? 1);
  // Ranks that leave cores idle measure only the cores that they use.
  const perNode = Math.min(here, parallel * Math.max(1, here / first.size));
  const base = profiles["cpu-local"];
  const profile: Profile = {
    ...base,
    name,
    ranksPerNode: first.size,
    kernels: { ...base.kernels, launch: copies.latency, bandwidth: copies.bandwidth, ...speeds },
    links: {
      ...base.links,
      "intra-node": first.size > 1 ? await measureLink(measured, perNode) : base.links["intra-node"],
    },
    enqueue: await timeEnqueue(measured),
    cores: { perNode },
  };
  return await broadcastProfile(contexts, profile);
}

function checkOptions(options: CalibrateOptions & Required<Pick<CalibrateOptions, "dtypes" | "headDims">>): void {
  const { name, dtypes, headDims, repetitions = 1, threads = 1, cores = 1 } = options;
  const whole = (value: number): boolean => Number.isSafeInteger(value) && value >= 1;
  expectValue("calibrate", name !== "", "a name", name);
  expectValue(
    "calibrate",
    Array.isArray(dtypes) &&
      dtypes.length > 0 &&
      dtypes.every((dtype) => typeof dtype === "string" && Object.hasOwn(dtypeBytes, dtype)),
    "dtypes, one or more",
    dtypes,
  );
  expectValue(
    "calibrate",
    Array.isArray(headDims) && headDims.length > 0 && headDims.every((headDim) => whole(headDim) && headDim <= 256),
    "headDims, one or more, integers from 1 to 256",
    headDims,
  );
  expectValue(
    "calibrate",
    whole(repetitions) && repetitions <= 1000,
    "repetitions an integer from 1 to 1000",
    repetitions,
  );
  expectValue("calibrate", whole(threads), "threads an integer ≥ 1", threads);
  expectValue("calibrate", cores > 0 && Number.isFinite(cores), "cores a number > 0", cores);
}

interface KernelCases {
  readonly dtypes: readonly DType[];
  readonly headDims: readonly number[];
  readonly launch: number;
}

async function measureAttention(
  measured: MeasuredRanks,
  { dtypes, headDims, launch }: KernelCases,
): Promise<Pick<KernelSpeeds, "attend" | "attendBackward">> {
  const kinds = dtypes.flatMap((dtype) => (["attend", "attendBackward"] as const).map((kind) => ({ dtype, kind })));
  const tiles = kinds.flatMap(({ dtype, kind }) =>
    headDims.flatMap((headDim) =>
      shapes.map(([rows, keys]) => ({ dtype, kind, numHeads: HEADS, rows, keys, headDim })),
    ),
  );
  // How much is lost to interleaved heads depends on how many there are; of four, rows are far enough apart.
  const square = { numHeads: 4, rows: 1024, keys: 1024, headDim: headDims[0]! };
  const pairs = kinds.flatMap((kind) => [false, true].map((interleaved) => ({ ...kind, ...square, interleaved })));
  const all = await timeTiles(measured, [...tiles, ...pairs]);
  const samples = all.slice(0, tiles.length);
  const speeds = { attend: {}, attendBackward: {} } as Record<
    "attend" | "attendBackward",
    Record<string, AttentionSpeed>
  >;
  for (const [i, { dtype, kind }] of kinds.entries()) {
    const own = samples.filter((_, j) => tiles[j]!.dtype === dtype && tiles[j]!.kind === kind);
    const [dense, interleaved] = all.slice(tiles.length + 2 * i) as [AttentionSample, AttentionSample];
    const fitted = fitAttention(own, kind === "attend" ? 4 : 10, launch);
    speeds[kind][dtype] = { ...fitted, interleaved: Math.max(1, interleaved.seconds / dense.seconds) };
  }
  return speeds;
}

/** In an exchange a rank's thread sends and receives, in turns, and shares the cores with those of all others. */
async function measureLink(measured: MeasuredRanks, perNode: number): Promise<Link> {
  const samples = await timeExchanges(measured, [64, 64 * KIB, 512 * KIB, 2048 * KIB]);
  const share = Math.min(1, perNode / measured.contexts[0]!.size);
  const { latency, bandwidth } = fitBytes(samples.map(({ bytes, seconds }) => ({ bytes: 2 * bytes, seconds })));
  return { latency, bandwidth: bandwidth / share, sharedBy: 1, duplex: false };
}

/** What rank 0 found, on every rank: ranks that share a machine may well differ in the last digits. */
async function broadcastProfile(contexts: readonly Context[], profile: Profile): Promise<Profile> {
  const text = JSON.stringify(profile);
  const texts = await Promise.all(contexts.map((ctx) => broadcastText(ctx, text)));
  return JSON.parse(texts[0]!) as Profile;
}

async function broadcastText(ctx: Context, text: string): Promise<string> {
  using length = fromArray(ctx, [text.length], [1]);
  ctx.world.broadcast(length, 0).wait();
  const [count] = await length.read();
  const codes = Array.from({ length: count! }, (_, i) => (i < text.length ? text.charCodeAt(i) : 0));
  using letters = fromArray(ctx, codes, [count!]);
  ctx.world.broadcast(letters, 0).wait();
  return String.fromCharCode(...(await letters.read()));
}
