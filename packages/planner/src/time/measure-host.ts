import { type Context, full, type Tensor } from "@mosaic/core";
import { countOperations } from "./host.ts";
import { runOnAllRanks, type MeasuredRanks, median, neighbourTransfers } from "./measure.ts";
import { LocalSteps, recordStep, type StepShape } from "./local-steps.ts";

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
  const shape: StepShape = { tokens: 256, numHeads: 4, headDim: 64, dtype: "float32", attentionCalls: 1 };
  const operations = countOperations(recordStep(shape).ranks[0]!);
  const exchanges = contexts[0]!.size > 1 ? operations : 0;
  const rounds = 8 * (repetitions + 1);
  const [first] = contexts as readonly [Context, ...Context[]];
  const step = first.rank < concurrentRanks ? new LocalSteps(first, shape) : undefined;
  const transferBuffers = contexts.map((ctx) => [full(ctx, [1], 0), full(ctx, [1], 0)] as const);
  const samples: HostTiming[] = [];
  try {
    for (let round = 0; round < rounds; round++) {
      for (const { world } of contexts) world.barrier().wait();
      await runOnAllRanks(contexts, (ctx) => ctx.device.stream.synchronize());
      const stepTimes = await step?.runAlone();
      const exchangeEnqueueNs = contexts.map((ctx, i) => enqueueExchanges(ctx, exchanges, transferBuffers[i]!));
      await runOnAllRanks(contexts, (ctx) => ctx.device.stream.synchronize());
      if (!stepTimes) continue;
      const enqueue = (stepTimes.enqueueMs + exchangeEnqueueNs[0]!) / 1e3 / (operations + 2 * exchanges);
      samples.push({ enqueue, stepOverhead: Math.max(0, stepTimes.outsideMs) / 1e3 });
    }
  } finally {
    for (const buffer of transferBuffers.flat()) buffer.dispose();
    step?.[Symbol.dispose]();
  }
  // Code that runs for the first time is slow, and steps are warm: the first half does not count. Of the rest the median,
  // for what a host does now and then, collecting garbage for one, is in few of them.
  const warmSamples = samples.slice(samples.length / 2);
  const medianOf = (of: (sample: HostTiming) => number): number =>
    warmSamples.length > 0 ? median(warmSamples.map(of)) : 0;
  return { enqueue: medianOf(({ enqueue }) => enqueue), stepOverhead: medianOf(({ stepOverhead }) => stepOverhead) };
}

/** Milliseconds in which a rank enqueues so many exchanges of one element with its neighbours. */
function enqueueExchanges(ctx: Context, exchanges: number, [out, receiveBuffer]: readonly [Tensor, Tensor]): number {
  const begin = performance.now();
  for (let i = 0; i < exchanges; i++) ctx.world.sendRecv(neighbourTransfers(ctx, out, receiveBuffer)).wait();
  return performance.now() - begin;
}
