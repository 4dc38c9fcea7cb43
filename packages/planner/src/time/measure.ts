import {
  attention,
  type Context,
  contiguous,
  type DType,
  empty,
  fromArray,
  full,
  layoutOf,
  local,
  masks,
  randn,
  type Tensor,
} from "@mosaic/core";
import { record } from "../record.ts";
import { countOperations } from "./host.ts";
import type { AttentionSample, BytesSample } from "./fit.ts";

// Everything is timed by the traces of devices and collectives: the host has no part in it, and a chain of calls is as long
// as from the start of its first to the end of its last. Other load only ever slows a chain down, so the best of several
// counts.

/** The ranks that this process drives. All of its calls are made by every process of the world, in the same order. */
export interface MeasuredRanks {
  readonly contexts: readonly Context[];
  /** How often each measurement is repeated. */
  readonly repetitions: number;
}

/** A chain of calls on a rank: enqueues them. */
type CallChain = (ctx: Context) => void;

/** What takes part in a chain, and which lane of its trace shows how long it took. */
interface Timing {
  readonly lane: "compute" | "communication";
  readonly ranks: "first" | "all";
}

/**
 * Seconds from when the first of the ranks that run a chain begins until the last of them ends; the same on every process.
 * Chains are to be longer than the slices of time in which a system gives cores to threads.
 */
async function timeChain({ contexts }: MeasuredRanks, { lane, ranks }: Timing, chain: CallChain): Promise<number> {
  for (const { world } of contexts) world.barrier().wait();
  await allRanks(contexts, (ctx) => ctx.device.stream.synchronize());
  const runners = contexts.filter(({ rank }) => ranks === "all" || rank === 0);
  for (const ctx of runners) {
    ctx.startTrace();
    chain(ctx);
  }
  await allRanks(contexts, (ctx) => ctx.device.stream.synchronize());
  const spans = new Map<Context, Span>();
  for (const ctx of runners) {
    const events = (await ctx.stopTrace()).filter((event) => event.lane === lane);
    const start = events.reduce((min, event) => Math.min(min, event.start), Number.POSITIVE_INFINITY);
    spans.set(ctx, { start, end: events.reduce((max, event) => Math.max(max, event.end), 0) });
  }
  return await unionOnHost(contexts, spans);
}

/** Nanoseconds of the clock that all processes of a host share. */
interface Span {
  readonly start: number;
  readonly end: number;
}

/** Seconds from the first start to the last end, counted from when the first rank began: float32 is too short for clocks. */
async function unionOnHost(contexts: readonly Context[], spans: ReadonlyMap<Context, Span>): Promise<number> {
  const begins = await allRanks(contexts, (ctx) => broadcastNumber(ctx, spans.get(ctx)?.start ?? 0));
  const widest = await allRanks(contexts, async (ctx) => {
    const span = spans.get(ctx);
    const since = (time: number): number => (time - begins[contexts.indexOf(ctx)]!) / 1e9;
    using ends = fromArray(ctx, span ? [-since(span.start), since(span.end)] : [0, 0], [2]);
    ctx.world.allReduce(ends, "max").wait();
    const [before, after] = await ends.read();
    return before! + after!;
  });
  return widest[0]!;
}

async function allRanks<T>(contexts: readonly Context[], call: (ctx: Context) => Promise<T>): Promise<T[]> {
  return await Promise.all(contexts.map(call));
}

/** The number that rank 0 has, to the last of its 53 bits: in parts that float32 holds. */
async function broadcastNumber(ctx: Context, whole: number): Promise<number> {
  const part = 2 ** 20;
  const rounded = Math.round(whole);
  const parts = [Math.floor(rounded / part ** 2), Math.floor(rounded / part) % part, rounded % part];
  using numbers = fromArray(ctx, parts, [3]);
  ctx.world.broadcast(numbers, 0).wait();
  const [high, middle, low] = await numbers.read();
  return (high! * part + middle!) * part + low!;
}

/** Runs every timing once more than `repetitions`, in turns, and returns the best of each; the first round only warms up. */
async function bestTimes(measured: MeasuredRanks, timings: readonly (() => Promise<number>)[]): Promise<number[]> {
  const least = timings.map(() => Number.POSITIVE_INFINITY);
  for (let round = 0; round <= measured.repetitions; round++) {
    for (const [i, timing] of timings.entries()) {
      const seconds = await timing();
      if (round > 0) least[i] = Math.min(least[i]!, seconds);
    }
  }
  return least;
}

/** An unmasked tile of attention. */
export interface TileShape {
  readonly kind: "attend" | "attendBackward";
  readonly dtype: DType;
  readonly numHeads: number;
  readonly rows: number;
  readonly keys: number;
  readonly headDim: number;
  /** Whether the heads of a row lie side by side; not so if absent. */
  readonly interleaved?: boolean;
}

/** Seconds of one call for each tile, on the first rank, the others at rest. */
export async function timeTiles(measured: MeasuredRanks, tiles: readonly TileShape[]): Promise<AttentionSample[]> {
  const operands = measured.contexts.map((ctx) => new TileOperands(ctx, tiles));
  try {
    const seconds = await bestTimes(
      measured,
      tiles.map((tile) => () => timeTile(measured, operands, tile)),
    );
    return tiles.map(({ numHeads, rows, keys, headDim }, i) => ({
      numHeads,
      rows,
      keys,
      headDim,
      seconds: seconds[i]!,
    }));
  } finally {
    for (const each of operands) each[Symbol.dispose]();
  }
}

/** How many times one rank's work all ranks do together in the time that one alone takes for its own. */
export async function timeConcurrentTiles(measured: MeasuredRanks, tile: TileShape): Promise<number> {
  const operands = measured.contexts.map((ctx) => new TileOperands(ctx, [tile]));
  const calls = 8;
  const timing = (ranks: Timing["ranks"]) => () =>
    timeChain(measured, { lane: "compute", ranks }, (ctx) => {
      for (let i = 0; i < calls; i++) operands[measured.contexts.indexOf(ctx)]!.call(tile);
    });
  try {
    const [alone, all] = await bestTimes(measured, [timing("first"), timing("all")]);
    return (measured.contexts[0]!.size * alone!) / all!;
  } finally {
    for (const each of operands) each[Symbol.dispose]();
  }
}

async function timeTile(measured: MeasuredRanks, operands: readonly TileOperands[], tile: TileShape): Promise<number> {
  // Short ones are repeated until there is something to measure; long ones are measured once.
  const calls = Math.max(1, Math.min(16, Math.round(2 ** 20 / (tile.numHeads * tile.rows * tile.keys))));
  const chain: CallChain = (ctx) => {
    const mine = operands[measured.contexts.indexOf(ctx)]!;
    for (let i = 0; i < calls; i++) mine.call(tile);
  };
  return (await timeChain(measured, { lane: "compute", ranks: "first" }, chain)) / calls;
}

/** Memory for the largest of several tiles, and calls on it. */
class TileOperands implements Disposable {
  readonly #ctx: Context;
  readonly #tensors = new Map<string, Tensor>();

  constructor(ctx: Context, tiles: readonly TileShape[]) {
    this.#ctx = ctx;
    for (const tile of tiles) this.#tensor(tile);
  }

  call(tile: TileShape): void {
    const { kernels } = this.#ctx.device;
    const get = (name: string): Tensor => this.#tensors.get(tensorKey(tile, name))!;
    const keys = { k: get("k"), v: get("v") };
    const span = (length: number) => [{ start: 0, length, step: 1 }];
    const place = {
      q: span(tile.rows),
      k: span(tile.keys),
      mask: [{ q0: 0, q1: tile.rows, k0: 0, k1: tile.keys, type: "full" as const }],
      scale: 1 / Math.sqrt(tile.headDim),
    };
    const [out, lse, q] = [get("out"), get("lse"), get("q")];
    if (tile.kind === "attend") return kernels.attend({ out, lse }, q, keys, place);
    const grads = { dq: out, dk: get("dk"), dv: get("dv") };
    kernels.attendBackward(grads, q, { dOut: get("dOut"), lse, delta: get("delta") }, keys, place);
  }

  /** Inputs are random, as at work: there are machines on which zeros take less time. */
  #tensor(tile: TileShape): void {
    const { numHeads, rows, keys, headDim, dtype, interleaved = false } = tile;
    const random = (length: number) => (): Tensor => {
      if (!interleaved) return randn(this.#ctx, [1, numHeads, length, headDim], { dtype });
      using wire = randn(this.#ctx, [length, 1, numHeads, headDim], { dtype });
      return wire.view({ shape: [1, numHeads, length, headDim], strides: [1, headDim, numHeads * headDim, 1] });
    };
    const own = (name: string, make: () => Tensor): void => {
      if (!this.#tensors.has(tensorKey(tile, name))) this.#tensors.set(tensorKey(tile, name), make());
    };
    const zeros = (shape: readonly number[]) => () => full(this.#ctx, shape, 0);
    for (const name of ["q", "dOut"]) own(name, random(rows));
    for (const name of ["k", "v"]) own(name, random(keys));
    own("out", zeros([1, numHeads, rows, headDim]));
    for (const name of ["lse", "delta"]) own(name, zeros([1, numHeads, rows]));
    for (const name of ["dk", "dv"]) own(name, zeros([1, numHeads, keys, headDim]));
  }

  [Symbol.dispose](): void {
    for (const tensor of this.#tensors.values()) tensor[Symbol.dispose]();
  }
}

function tensorKey({ numHeads, rows, keys, headDim, dtype, interleaved }: TileShape, name: string): string {
  return `${name} ${numHeads} ${rows} ${keys} ${headDim} ${dtype} ${interleaved ?? false}`;
}

/** Seconds of one copy of each size, on the first rank; its bytes are those read and those written. */
export async function timeCopies(measured: MeasuredRanks, sizes: readonly number[]): Promise<BytesSample[]> {
  const from = measured.contexts.map((ctx) => sizes.map((bytes) => full(ctx, [bytes / 8], 1)));
  const to = measured.contexts.map((ctx) => sizes.map((bytes) => full(ctx, [bytes / 8], 1)));
  const calls = 16;
  const timings = sizes.map((_, i) => () => {
    const chain: CallChain = (ctx) => {
      const mine = measured.contexts.indexOf(ctx);
      for (let call = 0; call < calls; call++) ctx.device.kernels.copy(to[mine]![i]!, from[mine]![i]!);
    };
    return timeChain(measured, { lane: "compute", ranks: "first" }, chain);
  });
  try {
    const seconds = await bestTimes(measured, timings);
    return sizes.map((bytes, i) => ({ bytes, seconds: seconds[i]! / calls }));
  } finally {
    for (const tensor of [...from, ...to].flat()) tensor[Symbol.dispose]();
  }
}

/** Seconds of one exchange in which every rank sends so many bytes to its right neighbour, in a chain of them. */
export async function timeExchanges(measured: MeasuredRanks, sizes: readonly number[]): Promise<BytesSample[]> {
  const out = measured.contexts.map((ctx) => sizes.map((bytes) => full(ctx, [bytes / 4], 1)));
  const into = measured.contexts.map((ctx) => sizes.map((bytes) => empty(ctx, [bytes / 4])));
  const calls = 8;
  const timings = sizes.map((_, i) => () => {
    const chain: CallChain = (ctx) => {
      const mine = measured.contexts.indexOf(ctx);
      const { rank, size } = ctx;
      const transfers = [
        { tensor: out[mine]![i]!, to: (rank + 1) % size },
        { tensor: into[mine]![i]!, from: (rank + size - 1) % size },
      ];
      for (let call = 0; call < calls; call++) ctx.world.sendRecv(transfers).wait();
    };
    return timeChain(measured, { lane: "communication", ranks: "all" }, chain);
  });
  try {
    const seconds = await bestTimes(measured, timings);
    return sizes.map((bytes, i) => ({ bytes, seconds: seconds[i]! / calls }));
  } finally {
    for (const tensor of [...out, ...into].flat()) tensor[Symbol.dispose]();
  }
}

/** Seconds that the host takes for one operation of a small attention, forward and backward, on the first rank. */
export async function timeEnqueue({ contexts, repetitions }: MeasuredRanks): Promise<number> {
  const sizes = { tokens: 16, numHeads: 1, headDim: 16, backend: local() };
  const ops = countOperations(record({ ...sizes, mesh: { one: 1 } }).ranks[0]!);
  const ctx = contexts.find(({ rank }) => rank === 0);
  if (!ctx) return 0;
  const rows = layoutOf({ mesh: {}, axes: [], placement: contiguous(), length: sizes.tokens });
  const draw = (): Tensor => randn(ctx, [1, sizes.numHeads, sizes.tokens, sizes.headDim]);
  using q = draw();
  using k = draw();
  using v = draw();
  using dOut = draw();
  const inputs = [q, k, v];
  for (const input of inputs) input.requiresGrad = true;
  const times: number[] = [];
  // Code that runs for the first time is slow, and steps are warm: the first half does not count. Of the rest the median,
  // for what a host does besides enqueueing, collecting garbage for one, is its own.
  for (let i = 0; i < 32 * (repetitions + 1); i++) {
    const begin = performance.now();
    using out = attention(ctx, q, k, v, { backend: sizes.backend, mask: masks.full(), queries: rows, keys: rows });
    out.backward(dOut);
    times.push(performance.now() - begin);
    await ctx.device.stream.synchronize();
    for (const input of inputs) {
      input.grad?.[Symbol.dispose]();
      input.grad = null;
    }
  }
  const warm = times.slice(times.length / 2).toSorted((a, b) => a - b);
  return warm[warm.length >> 1]! / 1e3 / ops;
}
