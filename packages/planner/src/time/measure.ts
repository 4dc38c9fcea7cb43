import {
  broadcastObject,
  type Context,
  type DType,
  empty,
  fromArray,
  full,
  randn,
  type Tensor,
  type TraceEvent,
  type Transfer,
} from "@mosaic/core";
import type { AttentionTiming, TransferTiming } from "./fit.ts";

// Everything is timed by the traces of devices and collectives, so that the host has no part in it. The time of a chain
// of calls is from the start of the first call to the end of the last. The median of several repetitions is used.

/** The ranks that this process drives. Every process of the world makes all measurements in the same order. */
export interface MeasuredRanks {
  readonly contexts: readonly Context[];
  /** Number of repetitions of each measurement. */
  readonly repetitions: number;
  /** Number of ranks that run kernels at once: those that have a core to themselves. */
  readonly numConcurrentRanks: number;
}

/** Enqueues a chain of calls on a rank. */
export type CallChain = (ctx: Context) => void;

/**
 * Runs a chain on all ranks below `ranks`. Returns the spans, in one lane or both, of those that this process drives.
 */
async function traceChain(
  { contexts }: MeasuredRanks,
  { lane, ranks }: { readonly lane?: "compute" | "communication"; readonly ranks: number },
  chain: CallChain,
): Promise<ReadonlyMap<Context, TimeSpan>> {
  for (const { world } of contexts) world.barrier().wait();
  await synchronizeAll(contexts);
  const chainContexts = contexts.filter(({ rank }) => rank < ranks);
  for (const ctx of chainContexts) {
    ctx.startTrace();
    chain(ctx);
  }
  await synchronizeAll(contexts);
  const spans = new Map<Context, TimeSpan>();
  for (const ctx of chainContexts) {
    const events = (await ctx.stopTrace()).filter((event) => lane === undefined || event.lane === lane);
    spans.set(ctx, eventSpan(events));
  }
  return spans;
}

/** Returns the span from the start of the first event to the end of the last. */
export function eventSpan(events: readonly TraceEvent[]): TimeSpan {
  return {
    start: events.reduce((min, event) => Math.min(min, event.start), Number.POSITIVE_INFINITY),
    end: events.reduce((max, event) => Math.max(max, event.end), 0),
  };
}

/**
 * Returns the seconds of a chain of kernels, as the maximum over the ranks that run it at once: as many as have a core
 * to themselves, because they share caches, memory and clock. The result is the same on every process. Chains are long
 * compared with the differences in when ranks begin.
 */
async function timeKernels(measuredRanks: MeasuredRanks, chain: CallChain): Promise<number> {
  const { contexts, numConcurrentRanks } = measuredRanks;
  const spans = await traceChain(measuredRanks, { lane: "compute", ranks: numConcurrentRanks }, chain);
  const maxSeconds = contexts.map((ctx) => {
    const span = spans.get(ctx);
    return maxOverRanks(ctx, span ? (span.end - span.start) / 1e9 : 0);
  });
  return (await Promise.all(maxSeconds))[0]!;
}

/** Nanoseconds of the clock that all processes of a host share. */
export interface TimeSpan {
  readonly start: number;
  readonly end: number;
}

/**
 * Returns the seconds from the first start to the last end. Times are relative to the start of rank 0, because float32
 * is too short for clocks.
 */
export async function computeSpanSeconds(
  contexts: readonly Context[],
  spans: ReadonlyMap<Context, TimeSpan>,
): Promise<number> {
  const startTimes = await Promise.all(contexts.map((ctx) => broadcastObject(ctx, spans.get(ctx)?.start ?? 0)));
  const spanSecondsByContext = contexts.map(async (ctx, i) => {
    const span = spans.get(ctx);
    const secondsSince = (time: number): number => (time - startTimes[i]!) / 1e9;
    return (
      (await maxOverRanks(ctx, span ? -secondsSince(span.start) : 0)) +
      (await maxOverRanks(ctx, span ? secondsSince(span.end) : 0))
    );
  });
  return (await Promise.all(spanSecondsByContext))[0]!;
}

async function maxOverRanks(ctx: Context, value: number): Promise<number> {
  using maxTensor = fromArray(ctx, [value], [1]);
  ctx.world.allReduce(maxTensor, "max").wait();
  const [maximum] = await maxTensor.read();
  return maximum!;
}

/** Resolves when all work that was enqueued on the ranks is done. */
export async function synchronizeAll(contexts: readonly Context[]): Promise<void> {
  await Promise.all(contexts.map((ctx) => ctx.device.stream.synchronize()));
}
/**
 * Runs every timing once more than `repetitions`, in turns, and returns the median of each. The first round is warm-up.
 * The minimum would represent conditions that no step as a whole has.
 */
async function measureMedianTimes(
  measuredRanks: MeasuredRanks,
  timings: readonly (() => Promise<number>)[],
): Promise<number[]> {
  const secondsByTiming = timings.map((): number[] => []);
  for (let round = 0; round <= measuredRanks.repetitions; round++) {
    for (const [i, measureSeconds] of timings.entries()) {
      const seconds = await measureSeconds();
      if (round > 0) secondsByTiming[i]!.push(seconds);
    }
  }
  return secondsByTiming.map(median);
}

/** Two timings, one of which is expressed as a multiple of the other. */
interface TimingPair {
  readonly measureSeconds: () => Promise<number>;
  readonly measureReference: () => Promise<number>;
  /** Number of times that both run in a round. */
  readonly numRuns: number;
}

/** For each pair, the median seconds of the reference, and the median of timing / reference. */
interface RelativeTime {
  readonly reference: number;
  readonly ratio: number;
}

/**
 * Runs both timings of each pair right after one another. The clock of a core and the load of a machine change within
 * seconds, and cancel only in the ratio of adjacent timings.
 */
async function measureRelativeTimes(
  measuredRanks: MeasuredRanks,
  pairs: readonly TimingPair[],
): Promise<RelativeTime[]> {
  const samples = pairs.map((): { seconds: number; reference: number }[] => []);
  for (let round = 0; round <= measuredRanks.repetitions; round++) {
    for (const [i, { measureSeconds, measureReference, numRuns }] of pairs.entries()) {
      for (let run = 0; run < numRuns; run++) {
        const sample = { seconds: await measureSeconds(), reference: await measureReference() };
        if (round > 0) samples[i]!.push(sample);
      }
    }
  }
  return samples.map((each) => ({
    reference: median(each.map(({ reference }) => reference)),
    ratio: median(each.map(({ seconds, reference }) => seconds / reference)),
  }));
}

export function median(values: readonly number[]): number {
  const sortedValues = values.toSorted((a, b) => a - b);
  const middleIndex = sortedValues.length >> 1;
  return sortedValues.length % 2 === 1
    ? sortedValues[middleIndex]!
    : (sortedValues[middleIndex - 1]! + sortedValues[middleIndex]!) / 2;
}

/** An unmasked tile of attention. */
export interface TileShape {
  readonly kind: "attend" | "attendBackward";
  readonly dtype: DType;
  readonly numHeads: number;
  readonly rows: number;
  readonly keys: number;
  readonly headDim: number;
  /** Whether the heads of a row are adjacent in memory. Default: false. */
  readonly interleaved?: boolean;
}

/** Returns the seconds of one call for each tile. */
export async function timeTiles(measuredRanks: MeasuredRanks, tiles: readonly TileShape[]): Promise<AttentionTiming[]> {
  const operands = measuredRanks.contexts.map((ctx) => new TileOperands(ctx, tiles));
  try {
    const seconds = await measureMedianTimes(
      measuredRanks,
      tiles.map((tile) => () => timeTile(measuredRanks, operands, tile)),
    );
    return tiles.map(({ numHeads, rows, keys, headDim }, i) => ({
      numHeads,
      rows,
      keys,
      headDim,
      seconds: seconds[i]!,
    }));
  } finally {
    for (const operandSet of operands) operandSet[Symbol.dispose]();
  }
}

/** Number of runs of a pair of long kernels in a round of `timeInterleaving`. */
const PAIR_RUNS_PER_ROUND = 3;

/** Returns, for each tile, how many times as long it takes if the heads of a row are adjacent in memory. */
export async function timeInterleaving(
  measuredRanks: MeasuredRanks,
  tiles: readonly TileShape[],
): Promise<readonly number[]> {
  const interleavedTiles = tiles.map((tile): TileShape => ({ ...tile, interleaved: true }));
  const operands = measuredRanks.contexts.map((ctx) => new TileOperands(ctx, [...tiles, ...interleavedTiles]));
  const pairs = tiles.map(
    (tile, i): TimingPair => ({
      measureSeconds: () => timeTile(measuredRanks, operands, interleavedTiles[i]!),
      measureReference: () => timeTile(measuredRanks, operands, tile),
      numRuns: PAIR_RUNS_PER_ROUND,
    }),
  );
  try {
    return (await measureRelativeTimes(measuredRanks, pairs)).map(({ ratio }) => ratio);
  } finally {
    for (const operandSet of operands) operandSet[Symbol.dispose]();
  }
}

/** Returns the seconds of one call. */
export async function timeTile(
  measuredRanks: MeasuredRanks,
  operands: readonly TileOperands[],
  tile: TileShape,
): Promise<number> {
  // Short calls are repeated until they can be measured; long ones run once.
  const numCalls = Math.max(1, Math.min(256, Math.round(2 ** 22 / (tile.numHeads * tile.rows * tile.keys))));
  const chain: CallChain = (ctx) => {
    const rankOperands = operands[measuredRanks.contexts.indexOf(ctx)]!;
    for (let i = 0; i < numCalls; i++) rankOperands.call(tile);
  };
  return (await timeKernels(measuredRanks, chain)) / numCalls;
}

/** Operands of several tiles, and calls on them. */
export class TileOperands implements Disposable {
  readonly #ctx: Context;
  readonly #tensors = new Map<string, Tensor>();

  constructor(ctx: Context, tiles: readonly TileShape[]) {
    this.#ctx = ctx;
    for (const tile of tiles) this.#createOperands(tile);
  }

  call(tile: TileShape): void {
    const { kernels } = this.#ctx.device;
    const getOperand = (name: string): Tensor => this.#tensors.get(tensorKey(tile, name))!;
    const keys = { k: getOperand("k"), v: getOperand("v") };
    const fullSpan = (length: number) => [{ start: 0, length, step: 1 }];
    const kernelTile = {
      q: fullSpan(tile.rows),
      k: fullSpan(tile.keys),
      mask: [{ q0: 0, q1: tile.rows, k0: 0, k1: tile.keys, type: "full" as const }],
      scale: 1 / Math.sqrt(tile.headDim),
    };
    const [out, lse, q] = [getOperand("out"), getOperand("lse"), getOperand("q")];
    if (tile.kind === "attend") return kernels.attend({ out, lse }, q, keys, kernelTile);
    const grads = { dq: out, dk: getOperand("dk"), dv: getOperand("dv") };
    kernels.attendBackward(grads, q, { dOut: getOperand("dOut"), lse, delta: getOperand("delta") }, keys, kernelTile);
  }

  /** Creates random inputs, as in real use, because on some machines zeros take less time. */
  #createOperands(tile: TileShape): void {
    const { numHeads, rows, keys, headDim, dtype, interleaved = false } = tile;
    const createRandom = (length: number) => (): Tensor => {
      if (!interleaved) return randn(this.#ctx, [1, numHeads, length, headDim], { dtype });
      using packed = randn(this.#ctx, [length, 1, numHeads, headDim], { dtype });
      return packed.view({ shape: [1, numHeads, length, headDim], strides: [1, headDim, numHeads * headDim, 1] });
    };
    const addTensor = (name: string, create: () => Tensor): void => {
      if (!this.#tensors.has(tensorKey(tile, name))) this.#tensors.set(tensorKey(tile, name), create());
    };
    const createZeros = (shape: readonly number[]) => () => full(this.#ctx, shape, 0);
    for (const name of ["q", "dOut"]) addTensor(name, createRandom(rows));
    for (const name of ["k", "v"]) addTensor(name, createRandom(keys));
    addTensor("out", createZeros([1, numHeads, rows, headDim]));
    for (const name of ["lse", "delta"]) addTensor(name, createZeros([1, numHeads, rows]));
    for (const name of ["dk", "dv"]) addTensor(name, createZeros([1, numHeads, keys, headDim]));
  }

  [Symbol.dispose](): void {
    for (const tensor of this.#tensors.values()) tensor[Symbol.dispose]();
  }
}

function tensorKey({ numHeads, rows, keys, headDim, dtype, interleaved }: TileShape, name: string): string {
  return `${name} ${numHeads} ${rows} ${keys} ${headDim} ${dtype} ${interleaved ?? false}`;
}

/** More bytes than caches near a core hold, because memory that a step reuses has left them. */
const LARGE_MESSAGE_BYTES = 16 * 2 ** 20;

/**
 * Returns the seconds of one copy of each size. Successive copies use different memory. A copy's bytes are those read
 * and those written.
 */
export async function timeCopies(measuredRanks: MeasuredRanks, sizes: readonly number[]): Promise<TransferTiming[]> {
  const numCalls = 32;
  // Bytes of the source, and as many of the target.
  const maxBytes = Math.max(LARGE_MESSAGE_BYTES, ...sizes) / 2;
  const sources = measuredRanks.contexts.map((ctx) => full(ctx, [maxBytes / 4], 1));
  const targets = measuredRanks.contexts.map((ctx) => full(ctx, [maxBytes / 4], 1));
  const timings = sizes.map((bytes) => () => {
    // Half of the bytes are read, half written.
    const length = bytes / 8;
    const chain: CallChain = (ctx) => {
      const index = measuredRanks.contexts.indexOf(ctx);
      for (let call = 0; call < numCalls; call++) {
        const copyView = { shape: [length], offset: (call % Math.floor(maxBytes / 4 / length)) * length };
        using source = sources[index]!.view(copyView);
        using target = targets[index]!.view(copyView);
        ctx.device.kernels.copy(target, source);
      }
    };
    return timeKernels(measuredRanks, chain);
  });
  try {
    const seconds = await measureMedianTimes(measuredRanks, timings);
    return sizes.map((bytes, i) => ({ bytes, seconds: seconds[i]! / numCalls }));
  } finally {
    for (const tensor of [...sources, ...targets]) tensor[Symbol.dispose]();
  }
}

/** Returns the transfers of an exchange around all ranks: to the right neighbor, from the left one. */
export function neighborTransfers(
  { rank, size }: Context,
  sendBuffer: Tensor,
  receiveBuffer: Tensor,
): readonly Transfer[] {
  return [
    { tensor: sendBuffer, to: (rank + 1) % size },
    { tensor: receiveBuffer, from: (rank + size - 1) % size },
  ];
}

/**
 * Returns, for each size, the seconds of one exchange of a chain in which every rank sends this many bytes to its right
 * neighbor.
 */
export async function timeExchanges(measuredRanks: MeasuredRanks, sizes: readonly number[]): Promise<TransferTiming[]> {
  const sendBuffers = measuredRanks.contexts.map((ctx) => sizes.map((bytes) => full(ctx, [bytes / 4], 1)));
  const receiveBuffers = measuredRanks.contexts.map((ctx) => sizes.map((bytes) => empty(ctx, [bytes / 4])));
  const numCalls = 8;
  const timings = sizes.map((_, i) => () => {
    const chain: CallChain = (ctx) => {
      const index = measuredRanks.contexts.indexOf(ctx);
      const transfers = neighborTransfers(ctx, sendBuffers[index]![i]!, receiveBuffers[index]![i]!);
      for (let call = 0; call < numCalls; call++) ctx.world.sendRecv(transfers).wait();
    };
    const ranks = measuredRanks.contexts[0]!.size;
    return traceChain(measuredRanks, { lane: "communication", ranks }, chain).then((spans) =>
      computeSpanSeconds(measuredRanks.contexts, spans),
    );
  });
  try {
    const seconds = await measureMedianTimes(measuredRanks, timings);
    return sizes.map((bytes, i) => ({ bytes, seconds: seconds[i]! / numCalls }));
  } finally {
    for (const tensor of [...sendBuffers, ...receiveBuffers].flat()) tensor[Symbol.dispose]();
  }
}

/** An exchange concurrent with a kernel, in a chain. */
export interface LockstepTiming {
  /** Seconds of the kernel on a rank that waits for none. */
  readonly kernelSeconds: number;
  /** Bytes that every rank sends, and also receives. */
  readonly bytes: number;
  /** Seconds of one exchange and kernel of the chain, on all ranks. */
  readonly seconds: number;
}

/**
 * Times chains in which all ranks send keys to their right neighbor, run a kernel, and wait for both, as steps of a
 * ring do.
 */
export async function timeLockstep(
  measuredRanks: MeasuredRanks,
  tiles: readonly TileShape[],
): Promise<readonly LockstepTiming[]> {
  const { contexts } = measuredRanks;
  const operands = contexts.map((ctx) => new TileOperands(ctx, tiles));
  const countElements = (tile: TileShape): number => tile.numHeads * tile.keys * tile.headDim;
  const sendBuffers = contexts.map((ctx) => tiles.map((tile) => full(ctx, [countElements(tile)], 1)));
  const receiveBuffers = contexts.map((ctx) => tiles.map((tile) => empty(ctx, [countElements(tile)])));
  // Chains are long enough that it makes no difference when a rank begins.
  const callCounts = tiles.map(({ numHeads, rows, keys }) =>
    Math.max(8, Math.min(64, Math.round(2 ** 25 / (numHeads * rows * keys)))),
  );
  const chains = tiles.map(
    (tile, i): CallChain =>
      (ctx) => {
        const index = contexts.indexOf(ctx);
        const transfers = neighborTransfers(ctx, sendBuffers[index]![i]!, receiveBuffers[index]![i]!);
        for (let call = 0; call < callCounts[i]!; call++) {
          const work = ctx.world.sendRecv(transfers);
          operands[index]!.call(tile);
          work.wait();
        }
      },
  );
  const ranks = contexts[0]!.size;
  const maxRows = Math.max(...tiles.map(({ rows }) => rows));
  const pairs = tiles.map(
    (tile, i): TimingPair => ({
      measureSeconds: async () => computeSpanSeconds(contexts, await traceChain(measuredRanks, { ranks }, chains[i]!)),
      measureReference: () => timeTile(measuredRanks, operands, tile),
      // Short kernels run more often, because waits are a larger part of their time.
      numRuns: maxRows / tile.rows,
    }),
  );
  try {
    const pairTimes = await measureRelativeTimes(measuredRanks, pairs);
    return tiles.map((tile, i) => ({
      kernelSeconds: pairTimes[i]!.reference,
      bytes: 4 * countElements(tile),
      seconds: (pairTimes[i]!.reference * pairTimes[i]!.ratio) / callCounts[i]!,
    }));
  } finally {
    for (const disposable of [...operands, ...sendBuffers.flat(), ...receiveBuffers.flat()])
      disposable[Symbol.dispose]();
  }
}
