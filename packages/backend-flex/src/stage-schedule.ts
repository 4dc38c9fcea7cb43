import { defineOptions, option, type OptionsOf } from "@mosaic/core";

const notNegative = { min: 0 } as const;

export const stageCostOptions = defineOptions("StageCost", {
  /** Seconds that a transfer takes before its first byte moves. Default: 0.00002. */
  latency: option.number({ ...notNegative, default: 20e-6 }),
  /** Bytes per second that a rank receives, or sends; a port of 400 Gbit/s has the default. Default: 50000000000. */
  bandwidth: option.number({ above: 0, default: 50e9 }),
  /** Seconds that a kernel takes beside its arithmetic. Default: 0.00001. */
  launch: option.number({ ...notNegative, default: 10e-6 }),
  /** Floating-point operations per second of the attention kernel; FlashAttention-3 on an H100 has the default. Default: 500000000000000. */
  flops: option.number({ above: 0, default: 500e12 }),
});
/** What stages are chosen by: it must be the same on every rank. */
export type StageCost = OptionsOf<typeof stageCostOptions>;
type Cost = ReturnType<typeof stageCostOptions.parse>;

/** What one rank has to do in one attention: visible pairs on its own rows and on those of others, and rows that move. */
export interface RankLoad {
  readonly ownPairs: number;
  readonly remotePairs: number;
  /** Rows received, or sent if these are more. */
  readonly rows: number;
}

/** Bytes and arithmetic of one pass, forward or backward. */
export interface PassSize {
  /** Bytes of a row of keys and values. */
  readonly castBytes: number;
  /** Bytes of a row of their gradients; 0 in forward. */
  readonly reduceBytes: number;
  /** Floating-point operations per visible pair, over batch and heads. */
  readonly pairFlops: number;
}

/** How a pass is cut into stages, on all ranks alike but for the numbers of rows. */
export interface StageSchedule {
  /** Remote stages. 0: the own and all remote rows in one call, when these have arrived. */
  readonly degree: number;
  /** Whether the own rows are attended to in two parts, the second behind the last reduction. */
  readonly isSplit: boolean;
  /** By rank: the share of its remote rows before each stage, and behind the last one. */
  readonly cuts: readonly (readonly number[])[];
  /** By rank: the share of the own rows that is attended to first. */
  readonly ownCuts: readonly number[];
}

/** More stages than this have never been of use: MagiAttention's bound of its dynamic degree. */
const MAX_DEGREE = 8;

/**
 * The schedule of least predicted time, which is that of the slowest rank; of equal ones the one of fewer stages. `degree`
 * fixes the number of stages.
 *
 * The time of a pass is Σ max(what travels, what is computed meanwhile): the first rows behind the own ones, those of stage
 * j + 1 and, in backward, the gradients of stage j − 1 behind stage j. The last gradients are behind nothing, or behind a
 * second part of the own rows. Source: MagiAttention's overlap model, which has neither of the two, and one degree for both passes.
 */
export function stageSchedule(
  loads: readonly RankLoad[],
  size: PassSize,
  options: { readonly cost: StageCost; readonly degree: number | undefined },
): StageSchedule {
  const model = new PassModel(size, stageCostOptions.parse(options.cost));
  const { degree: fixed } = options;
  const degrees = fixed === undefined ? Array.from({ length: MAX_DEGREE + 1 }, (_, degree) => degree) : [fixed];
  let best: { readonly seconds: number; readonly schedule: StageSchedule } | undefined;
  for (const degree of degrees) {
    for (const isSplit of size.reduceBytes > 0 && degree > 0 ? [false, true] : [false]) {
      const ranks = loads.map((load) => model.fastest(load, degree, isSplit));
      const seconds = ranks.reduce((most, rank) => Math.max(most, rank.seconds), 0);
      if (best && seconds >= best.seconds) continue;
      const [cuts, ownCuts] = [ranks.map((rank) => rank.cuts), ranks.map((rank) => rank.ownCut)];
      best = { seconds, schedule: { degree, isSplit, cuts, ownCuts } };
    }
  }
  return best!.schedule;
}

/** How one rank's rows may be cut, and the time that it then takes. */
interface RankCuts {
  readonly seconds: number;
  readonly cuts: readonly number[];
  readonly ownCut: number;
}

class PassModel {
  readonly #size: PassSize;
  readonly #cost: Cost;

  constructor(size: PassSize, cost: Cost) {
    this.#size = size;
    this.#cost = cost;
  }

  fastest(load: RankLoad, degree: number, isSplit: boolean): RankCuts {
    const equal = Array.from({ length: degree + 1 }, (_, stage) => (degree === 0 ? 0 : stage / degree));
    const candidates = degree > 1 && load.rows > 0 ? [equal, this.#hiddenCuts(load, degree)] : [equal];
    const ownCut = isSplit ? this.#ownCut(load, equal) : 1;
    return candidates
      .map((cuts) => ({ seconds: this.#seconds(load, cuts, ownCut), cuts, ownCut }))
      .reduce((best, each) => (each.seconds < best.seconds ? each : best));
  }

  /** Each stage of as many rows as arrive while the one before it computes; the last one of the rest. */
  #hiddenCuts({ ownPairs, remotePairs, rows }: RankLoad, degree: number): number[] {
    const cuts = [0];
    let meanwhile = this.#compute(ownPairs);
    for (let stage = 1; stage < degree; stage++) {
      const arriving = Math.max(0, ((meanwhile - this.#cost.latency) * this.#cost.bandwidth) / this.#size.castBytes);
      const share = Math.max(arriving / rows, (1 - cuts.at(-1)!) / (4 * degree));
      cuts.push(Math.min(1, cuts.at(-1)! + share));
      meanwhile = this.#compute(remotePairs * (cuts.at(-1)! - cuts.at(-2)!));
    }
    return [...cuts, 1];
  }

  /** The own rows hide the first transfer and the last reduction: divided as these take. */
  #ownCut({ rows }: RankLoad, cuts: readonly number[]): number {
    const first = this.#cast(rows * cuts[1]!);
    const last = this.#reduce(rows * (1 - cuts.at(-2)!));
    return first + last > 0 ? first / (first + last) : 1;
  }

  #seconds({ ownPairs, remotePairs, rows }: RankLoad, cuts: readonly number[], ownCut: number): number {
    const degree = cuts.length - 1;
    if (degree === 0) return this.#cast(rows) + this.#compute(ownPairs + remotePairs) + this.#reduce(rows);
    const share = (stage: number): number => (stage < 1 || stage > degree ? 0 : cuts[stage]! - cuts[stage - 1]!);
    let seconds = Math.max(this.#compute(ownPairs * ownCut), this.#cast(rows * share(1)));
    for (let stage = 1; stage <= degree; stage++) {
      const moving = this.#cast(rows * share(stage + 1)) + this.#reduce(rows * share(stage - 1));
      seconds += Math.max(this.#compute(remotePairs * share(stage)), moving);
    }
    return seconds + Math.max(this.#compute(ownPairs * (1 - ownCut)), this.#reduce(rows * share(degree)));
  }

  #cast(rows: number): number {
    return rows > 0 ? this.#cost.latency + (rows * this.#size.castBytes) / this.#cost.bandwidth : 0;
  }

  #reduce(rows: number): number {
    const { reduceBytes } = this.#size;
    return rows > 0 && reduceBytes > 0 ? this.#cost.latency + (rows * reduceBytes) / this.#cost.bandwidth : 0;
  }

  #compute(pairs: number): number {
    return pairs > 0 ? this.#cost.launch + (pairs * this.#size.pairFlops) / this.#cost.flops : 0;
  }
}
