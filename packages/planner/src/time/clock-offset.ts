import {
  broadcastObject,
  checkContext,
  type Context,
  defineOptions,
  fromArray,
  option,
  type OptionsOf,
  type Tensor,
} from "@mosaic/core";

/** Difference between the clocks of a rank and of rank 0, in nanoseconds. */
export interface ClockOffset {
  /** Added to times of this rank's traces, it gives times of rank 0's clock. */
  readonly offset: number;
  /**
   * Maximum error of the offset: half of the shortest round trip, however it divides into its two directions. 0 on the
   * host of rank 0.
   */
  readonly error: number;
}

export const clockOffsetOptions = defineOptions("clockOffset", {
  /** Number of round trips, of which the shortest is used. Default 64. */
  rounds: option.integer({ min: 1, max: 65_536, default: 64 }),
  /** Returns the nanoseconds of the clock of this rank's traces. Default: CLOCK_MONOTONIC, as `process.hrtime`. */
  now: option.custom("a function", (value): value is () => number => typeof value === "function", { optional: true }),
});
/** Options of `clockOffset`. */
export type ClockOffsetOptions = OptionsOf<typeof clockOffsetOptions>;

/**
 * Measures the offset of this rank's clock from that of rank 0. The first rank of each host sends messages to rank 0,
 * which replies with its time. The reply was composed during the round trip, so half of the shortest round trip
 * bounds the error (Cristian 1989). Ranks of a host share a clock. Collective: every rank calls it while no other
 * work runs, right before or after the trace, because the clocks of two machines drift apart by up to some 50 µs per
 * second.
 *
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { clockOffset } from "@mosaic/planner";
 * const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
 * const offsets = await Promise.all(contexts.map((ctx) => clockOffset(ctx)));
 * offsets[1]; // => { offset: 0, error: 0 }
 * await Promise.all(contexts.map((ctx) => ctx.close()));
 * ```
 * @throws OptionError for unknown options or invalid values.
 */
export async function clockOffset(ctx: Context, options?: ClockOffsetOptions): Promise<ClockOffset> {
  checkContext("clockOffset", ctx);
  const { rounds, now = monotonicTime } = clockOffsetOptions.parse(options);
  const hosts = ctx.world.hosts ?? Array.from({ length: ctx.size }, (_, rank) => rank);
  let ownOffset: ClockOffset = { offset: 0, error: 0 };
  for (const [firstRank, host] of hosts.entries()) {
    if (hosts.indexOf(host) < firstRank || host === hosts[0]) continue;
    let measuredOffset = ownOffset;
    if (ctx.rank === 0) await replyToRounds(ctx, firstRank, { rounds, now });
    if (ctx.rank === firstRank) measuredOffset = await measureOffset(ctx, { rounds, now });
    const hostOffset = await broadcastObject(ctx, measuredOffset, firstRank, { label: "clockOffset" });
    if (hosts[ctx.rank] === host) ownOffset = hostOffset;
  }
  return ownOffset;
}

const monotonicTime = (): number => Number(process.hrtime.bigint());

interface ClockRounds {
  readonly rounds: number;
  readonly now: () => number;
}

async function measureOffset(ctx: Context, { rounds, now }: ClockRounds): Promise<ClockOffset> {
  let bestOffset: ClockOffset = { offset: 0, error: Number.POSITIVE_INFINITY };
  using request = fromArray(ctx, [0], [1]);
  using reply = fromArray(ctx, [0, 0, 0], [3]);
  for (let round = 0; round < rounds; round++) {
    const sentTime = now();
    ctx.world.sendRecv([{ tensor: request, to: 0 }]).wait();
    ctx.world.sendRecv([{ tensor: reply, from: 0 }]).wait();
    const remoteTime = await readNumber(reply);
    const error = (now() - sentTime) / 2;
    if (error < bestOffset.error) bestOffset = { offset: remoteTime - (sentTime + error), error };
  }
  return bestOffset;
}

async function replyToRounds(ctx: Context, peer: number, { rounds, now }: ClockRounds): Promise<void> {
  using request = fromArray(ctx, [0], [1]);
  for (let round = 0; round < rounds; round++) {
    ctx.world.sendRecv([{ tensor: request, from: peer }]).wait();
    await request.read();
    using time = fromArray(ctx, splitNumber(now()), [3]);
    ctx.world.sendRecv([{ tensor: time, to: peer }]).wait();
  }
}

const DIGIT_BASE = 2 ** 20;

/** Splits an integer of up to 60 bits into parts that float32 can hold. The first part has the sign. */
function splitNumber(value: number): readonly [number, number, number] {
  const integer = Math.round(value);
  const high = Math.floor(integer / DIGIT_BASE ** 2);
  const remainder = integer - high * DIGIT_BASE ** 2;
  return [high, Math.floor(remainder / DIGIT_BASE), remainder % DIGIT_BASE];
}

function joinNumber(digits: Float32Array): number {
  return (digits[0]! * DIGIT_BASE + digits[1]!) * DIGIT_BASE + digits[2]!;
}

async function readNumber(x: Tensor): Promise<number> {
  return joinNumber(await x.read());
}
