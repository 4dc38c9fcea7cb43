import { availableParallelism } from "node:os";
import {
  attention,
  type Context,
  fromArray,
  type Layout,
  layoutOf,
  masks,
  spansLength,
  type Tensor,
} from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { world } from "../init.ts";
import type { BenchSettings } from "./settings.ts";

/** The measurement of one backend at one sequence length. */
export interface Measurement {
  readonly seqLength: number;
  readonly backend: string;
  readonly ranks: number;
  /** The median, shortest and longest time of the repetitions. */
  readonly seconds: number;
  readonly shortest: number;
  readonly longest: number;
  /** The median ratio of its time to that of the first backend in the same round. */
  readonly ratio: number;
  /**
   * From the operations of visible pairs: 4 · pairs · heads · head dimension in forward, 2.5 times as many in backward.
   */
  readonly flopsPerSecond: number;
  /** Payload bytes that all ranks together send. */
  readonly bytesSent: number;
}

/**
 * Measures every backend at one length. The backends alternate, so that other load on the machine affects all equally.
 */
export async function measureLength(settings: BenchSettings, seqLength: number): Promise<readonly Measurement[]> {
  const benches: AttentionBench[] = [];
  try {
    for (const backend of settings.backends) benches.push(await AttentionBench.open(settings, backend, seqLength));
    const seconds: number[][] = benches.map(() => []);
    for (let round = 0; round <= settings.repetitions; round++) {
      for (const [i, bench] of benches.entries()) {
        const elapsedSeconds = await bench.measureOnce();
        // Round 0 is warm-up (memory, threads, plans).
        if (round > 0) seconds[i]!.push(elapsedSeconds);
      }
    }
    return benches.map((bench, i) => ({
      ...{ seqLength, backend: settings.backends[i]!, ranks: bench.ranks, bytesSent: bench.bytesSent },
      seconds: median(seconds[i]!),
      shortest: Math.min(...seconds[i]!),
      longest: Math.max(...seconds[i]!),
      ratio: median(seconds[i]!.map((each, round) => each / seconds[0]![round]!)),
      flopsPerSecond: countFlops(settings, seqLength) / median(seconds[i]!),
    }));
  } finally {
    for (const bench of benches) await bench[Symbol.asyncDispose]();
  }
}

function countFlops({ mask, numHeads, headDim, backward }: BenchSettings, length: number): number {
  return 4 * masks.maskArea(mask, length, length) * numHeads * headDim * (backward ? 3.5 : 1);
}

/** Returns the middle value, or the mean of the two middle values. */
export function median(values: readonly number[]): number {
  const sortedValues = values.toSorted((a, b) => a - b);
  const middle = sortedValues.length >> 1;
  return sortedValues.length % 2 === 1
    ? sortedValues[middle]!
    : (sortedValues[middle - 1]! + sortedValues[middle]!) / 2;
}

interface Shard {
  readonly ctx: Context;
  readonly q: Tensor;
  readonly k: Tensor;
  readonly v: Tensor;
  readonly dOut: Tensor;
}

/** One backend's ranks, with their shards of q, k and v. */
class AttentionBench implements AsyncDisposable {
  readonly #settings: BenchSettings;
  readonly #backend: string;
  readonly #layout: Layout;
  readonly #shards: readonly Shard[];
  /** Payload bytes sent in the last call. */
  bytesSent = 0;

  private constructor(settings: BenchSettings, backend: string, layout: Layout, contexts: readonly Context[]) {
    this.#settings = settings;
    this.#backend = backend;
    this.#layout = layout;
    this.#shards = contexts.map((ctx) => createShard(ctx, settings, spansLength(layout.spans(ctx.mesh.coordinate))));
  }

  static async open(settings: BenchSettings, backend: string, length: number): Promise<AttentionBench> {
    const { ranks: rankCount, placement } = settings;
    const isSingleRank = backend === "local";
    const ranks = isSingleRank ? 1 : rankCount;
    const threads = Math.max(1, Math.floor(availableParallelism() / rankCount));
    const contexts = await world(ranks, {
      device: () => cpu({ threads: isSingleRank ? threads * rankCount : threads }),
    });
    try {
      return new AttentionBench(
        settings,
        backend,
        layoutOf({ mesh: { sp: ranks }, axes: isSingleRank ? [] : ["sp"], placement, length }),
        contexts,
      );
    } catch (error) {
      for (const ctx of contexts) await ctx.close();
      throw error;
    }
  }

  get ranks(): number {
    return this.#shards.length;
  }

  /** Runs attention once. Returns the seconds from a state in which all ranks are idle until all have completed. */
  async measureOnce(): Promise<number> {
    await this.#synchronize();
    const initialBytesSent = this.#totalBytesSent();
    const startTime = performance.now();
    const outputs = this.#shards.map(({ ctx, q, k, v }) => {
      const { mask } = this.#settings;
      return attention(ctx, q, k, v, { backend: this.#backend, mask, queries: this.#layout, keys: this.#layout });
    });
    if (this.#settings.backward) for (const [i, out] of outputs.entries()) out.backward(this.#shards[i]!.dOut);
    await this.#synchronize();
    const seconds = (performance.now() - startTime) / 1000;
    this.bytesSent = this.#totalBytesSent() - initialBytesSent;
    for (const out of outputs) out[Symbol.dispose]();
    for (const { q, k, v } of this.#shards) {
      for (const x of [q, k, v]) {
        x.grad?.[Symbol.dispose]();
        x.grad = null;
      }
    }
    return seconds;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const { q, k, v, dOut } of this.#shards) for (const x of [q, k, v, dOut]) x[Symbol.dispose]();
    await Promise.all(this.#shards.map(({ ctx }) => ctx.close()));
  }

  async #synchronize(): Promise<void> {
    await Promise.all(this.#shards.map(({ ctx }) => ctx.device.stream.synchronize()));
  }

  #totalBytesSent(): number {
    return this.#shards.reduce((sum, { ctx }) => sum + ctx.mesh.group("sp").traffic().bytesSent, 0);
  }
}

function createShard(
  ctx: Context,
  { numHeads, numKvHeads, headDim, dtype, backward }: BenchSettings,
  rows: number,
): Shard {
  const createInput = (heads: number, seed: number): Tensor => {
    const x = fromArray(
      ctx,
      generateUniformValues(heads * rows * headDim, seed + 17 * ctx.rank),
      [1, heads, rows, headDim],
      {
        dtype,
      },
    );
    x.requiresGrad = backward && seed < 3;
    return x;
  };
  return {
    ctx,
    q: createInput(numHeads, 0),
    k: createInput(numKvHeads, 1),
    v: createInput(numKvHeads, 2),
    dOut: createInput(numHeads, 3),
  };
}

/** Generates deterministic values from −1 to 1 with a linear congruential generator (Lehmer 1951). */
function generateUniformValues(length: number, seed: number): Float32Array {
  let state = seed + 1;
  return Float32Array.from({ length }, () => {
    state = (state * 48_271) % 2_147_483_647;
    return (2 * state) / 2_147_483_647 - 1;
  });
}
