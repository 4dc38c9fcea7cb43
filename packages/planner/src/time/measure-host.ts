import {
  attention,
  type AttentionBackend,
  type Context,
  contiguous,
  full,
  type Layout,
  layoutOf,
  local,
  masks,
  randn,
  type Tensor,
} from "@mosaic/core";
import { record } from "../record.ts";
import { countOperations } from "./host.ts";
import { runOnAllRanks, type MeasuredRanks, median, eventSpan } from "./measure.ts";

/** What `timeHost` measures. */
export interface HostTiming {
  /** Seconds that the host takes for one operation. */
  readonly enqueue: number;
  /** Seconds of a step in which none of its operations runs: before the first, and after the last. */
  readonly stepOverhead: number;
}

/**
 * The host's part in steps of attention, forward and backward, on as many ranks as have a core to themselves, and for an operation
 * in exchanges between all ranks, too. The kernels are long enough that code and data leave the caches between steps, as they
 * do at work.
 */
export async function timeHost(measured: MeasuredRanks): Promise<HostTiming> {
  const { contexts, repetitions, concurrentRanks } = measured;
  const sizes = { tokens: 256, numHeads: 4, headDim: 64, backend: local() };
  const operations = countOperations(record({ ...sizes, mesh: { one: 1 } }).ranks[0]!);
  const exchanges = contexts[0]!.size > 1 ? operations : 0;
  const rounds = 8 * (repetitions + 1);
  const [first] = contexts as readonly [Context, ...Context[]];
  const step = first.rank < concurrentRanks ? new LocalStep(first, sizes) : undefined;
  const words = contexts.map((ctx) => [full(ctx, [1], 0), full(ctx, [1], 0)] as const);
  const samples: HostTiming[] = [];
  try {
    for (let round = 0; round < rounds; round++) {
      for (const { world } of contexts) world.barrier().wait();
      await runOnAllRanks(contexts, (ctx) => ctx.device.stream.synchronize());
      const stepTimes = await step?.run();
      const exchangeEnqueueNs = contexts.map((ctx, i) => enqueueExchanges(ctx, exchanges, words[i]!));
      await runOnAllRanks(contexts, (ctx) => ctx.device.stream.synchronize());
      if (!stepTimes) continue;
      const enqueue = (stepTimes.enqueue + exchangeEnqueueNs[0]!) / 1e3 / (operations + 2 * exchanges);
      samples.push({ enqueue, stepOverhead: Math.max(0, stepTimes.outside) / 1e3 });
    }
  } finally {
    for (const each of words.flat()) each.dispose();
    step?.[Symbol.dispose]();
  }
  // Code that runs for the first time is slow, and steps are warm: the first half does not count. Of the rest the median,
  // for what a host does now and then, collecting garbage for one, is in few of them.
  const warm = samples.slice(samples.length / 2);
  const typical = (of: (sample: HostTiming) => number): number => (warm.length > 0 ? median(warm.map(of)) : 0);
  return { enqueue: typical(({ enqueue }) => enqueue), stepOverhead: typical(({ stepOverhead }) => stepOverhead) };
}

/** Milliseconds in which a rank enqueues so many exchanges of one element with its neighbours. */
function enqueueExchanges(ctx: Context, exchanges: number, [out, into]: readonly [Tensor, Tensor]): number {
  const { rank, size } = ctx;
  const begin = performance.now();
  for (let i = 0; i < exchanges; i++) {
    const transfers = [
      { tensor: out, to: (rank + 1) % size },
      { tensor: into, from: (rank + size - 1) % size },
    ];
    ctx.world.sendRecv(transfers).wait();
  }
  return performance.now() - begin;
}

interface StepShape {
  readonly tokens: number;
  readonly numHeads: number;
  readonly headDim: number;
  readonly backend: AttentionBackend;
}

/** Attention on one rank, forward and backward, again and again. */
class LocalStep implements Disposable {
  readonly #ctx: Context;
  readonly #backend: AttentionBackend;
  readonly #rows: Layout;
  readonly #inputs: readonly [Tensor, Tensor, Tensor];
  readonly #dOut: Tensor;

  constructor(ctx: Context, { tokens, numHeads, headDim, backend }: StepShape) {
    this.#ctx = ctx;
    this.#backend = backend;
    this.#rows = layoutOf({ mesh: {}, axes: [], placement: contiguous(), length: tokens });
    const draw = (): Tensor => randn(ctx, [1, numHeads, tokens, headDim]);
    this.#inputs = [draw(), draw(), draw()];
    this.#dOut = draw();
    for (const input of this.#inputs) input.requiresGrad = true;
  }

  /** Takes a step. Milliseconds in which the host enqueues it, and for which it lasts longer than its operations. */
  async run(): Promise<{ readonly enqueue: number; readonly outside: number }> {
    const ctx = this.#ctx;
    ctx.startTrace();
    const begin = performance.now();
    const options = { backend: this.#backend, mask: masks.full(), queries: this.#rows, keys: this.#rows };
    const out = attention(ctx, ...this.#inputs, options);
    out.backward(this.#dOut);
    const enqueue = performance.now() - begin;
    await ctx.device.stream.synchronize();
    out.dispose();
    for (const input of this.#inputs) {
      input.grad?.dispose();
      input.grad = null;
    }
    const seconds = performance.now() - begin;
    const { start, end } = eventSpan(await ctx.stopTrace());
    return { enqueue, outside: seconds - (end - start) / 1e6 };
  }

  [Symbol.dispose](): void {
    for (const tensor of [...this.#inputs, this.#dOut]) tensor.dispose();
  }
}
