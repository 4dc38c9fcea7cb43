import { type DType, OptionError } from "@mosaic/core";
import { PairCounts } from "../prove/visibility.ts";
import type { InternPool } from "../symbolic/intern-pool.ts";
import type { View } from "../symbolic/strided-layout.ts";
import type { RankRecord } from "../symbolic/rank-record.ts";
import type { TapeReader } from "../symbolic/tape.ts";
import type { AttentionSpeed, KernelSpeeds, Profile } from "./profile.ts";

/** One call of an attention kernel, over all of its heads and sequences. */
export interface AttentionWork {
  readonly dtype: DType;
  readonly headDim: number;
  /** Visible pairs, query rows and key rows of one head. */
  readonly pairs: number;
  readonly rows: number;
  readonly keys: number;
  /** Sequences × query heads. */
  readonly numHeads: number;
  /** Whether the heads of a row of keys are adjacent in memory. Default: false. */
  readonly interleaved?: boolean;
}

/** Returns the seconds that an attention kernel takes alone. Without visible pairs, it costs only the launch. */
export function attentionSeconds(
  kernels: KernelSpeeds,
  kind: "attend" | "attendBackward",
  { dtype, headDim, pairs, rows, keys, numHeads, interleaved = false }: AttentionWork,
): number {
  if (pairs === 0 || numHeads === 0) return kernels.launch;
  const speed = kernels[kind][dtype] ?? throwMissingSpeed(kernels, kind, dtype);
  const { halfSpeedRows, halfSpeedKeys, halfSpeedHeadDim } = speed;
  const flopsPerPair = (kind === "attend" ? 4 : 10) * (headDim + halfSpeedHeadDim);
  const flops = flopsPerPair * numHeads * (pairs + halfSpeedKeys * rows + halfSpeedRows * keys);
  const slowdown = interleaved ? (speed.interleaved ?? 1) : 1;
  return kernels.launch + (slowdown * flops) / speed.flops / waveUtilization(kernels, numHeads, rows);
}

/** Returns the share of the device that a call uses. Its last wave may leave units idle. */
function waveUtilization({ waves }: KernelSpeeds, numHeads: number, rows: number): number {
  if (!waves) return 1;
  const blocks = numHeads * Math.ceil(rows / waves.rows);
  return blocks / (Math.ceil(blocks / waves.units) * waves.units);
}

function throwMissingSpeed(kernels: KernelSpeeds, kind: "attend" | "attendBackward", dtype: DType): AttentionSpeed {
  throw new OptionError({
    where: `profile: kernels.${kind}`,
    expected: dtype,
    received: Object.keys(kernels[kind]).join(", ") || "none",
    remedy: "measure or set the speed for this dtype, or record with a different dtype",
  });
}

/** Computes how long the kernels on a rank's tape take. The visible pairs of repeated tiles are counted once. */
export class KernelTimes {
  readonly #profile: Profile;
  readonly #interned: InternPool;
  readonly #pairCounts: PairCounts;

  constructor(profile: Profile, interned: InternPool) {
    this.#profile = profile;
    this.#interned = interned;
    this.#pairCounts = new PairCounts(interned);
  }

  seconds(event: TapeReader, { views, viewBytes }: RankRecord): number {
    const { kernels } = this.#profile;
    const getView = (i: number): View => views[event.arg(i)]!;
    switch (event.op) {
      case "attend":
        return this.#attentionSeconds(event, "attend", { q: getView(2), k: getView(3), v: getView(4) }, 5);
      case "attendBackward":
        return this.#attentionSeconds(event, "attendBackward", { q: getView(3), k: getView(7), v: getView(8) }, 9);
      case "fill":
        return kernels.launch + viewBytes[event.arg(0)]! / kernels.bandwidth;
      case "compute":
        return kernels.launch + this.#nonAttentionSeconds(event, views);
      default: {
        let bytes = 0;
        for (let i = 0; i < event.count; i++) bytes += viewBytes[event.arg(i)]!;
        return kernels.launch + bytes / kernels.bandwidth;
      }
    }
  }

  // oxlint-disable-next-line max-params -- the event, its operands and the index of its tile
  #attentionSeconds(
    event: TapeReader,
    kind: "attend" | "attendBackward",
    { q, k, v }: Readonly<Record<"q" | "k" | "v", View>>,
    firstArgumentIndex: number,
  ): number {
    const [batch, numHeads, rows, queryHeadDim] = q.layout.box.sizes as [number, number, number, number];
    const valueHeadDim = v.layout.box.sizes[3]!;
    // Forward, one product has the head size of keys and one that of values; backward, three have that of keys and two
    // that of values.
    const headDim = kind === "attend" ? (queryHeadDim + valueHeadDim) / 2 : (3 * queryHeadDim + 2 * valueHeadDim) / 5;
    const pairs = this.#pairCounts.count(
      event.arg(firstArgumentIndex),
      event.arg(firstArgumentIndex + 1),
      event.arg(firstArgumentIndex + 2),
    );
    const { sizes, strides } = k.layout.box;
    const interleaved = strides[2]! > queryHeadDim;
    const work = { dtype: q.dtype, headDim, pairs, rows, keys: sizes[2]!, numHeads: batch * numHeads, interleaved };
    return attentionSeconds(this.#profile.kernels, kind, work);
  }

  /**
   * Returns the seconds of kernels that attention does not use: matrix products by their operations, all others by
   * their bytes.
   */
  #nonAttentionSeconds(event: TapeReader, views: readonly View[]): number {
    const { kernels } = this.#profile;
    const operandViews = Array.from({ length: event.count - 2 }, (_, i) => views[event.arg(2 + i)]!);
    const name = this.#interned.strings[event.arg(0)];
    if (name !== "matmul" && name !== "linear") {
      return operandViews.reduce((sum, view) => sum + view.bytes, 0) / kernels.bandwidth;
    }
    const a = operandViews[event.arg(1)]!; // after the written views
    const innerSize = a.layout.shape.at(-1)!;
    return (2 * operandViews[0]!.layout.size * innerSize) / kernels.matmul;
  }
}
