import { type Context, full, type Tensor } from "@mosaic/core";
import { countOperations } from "./host.ts";
import { type MeasuredRanks, median, neighborTransfers, synchronizeAll } from "./measure.ts";
import { LocalSteps, recordStep, type StepShape } from "./local-steps.ts";

/** Result of `timeHost`. */
export interface HostTiming {
  /** Seconds that the host takes for one operation. */
  readonly enqueue: number;
  /** Seconds of a step in which none of its operations runs: before the first, and after the last. */
  readonly stepOverhead: number;
}

/**
 * Measures the host's part of attention steps, forward and backward, on as many ranks as have a core to themselves; for
 * the time per operation, also of exchanges between all ranks. The kernels are long enough that code and data leave the
 * caches between steps, as in real use.
 */
export async function timeHost(measuredRanks: MeasuredRanks): Promise<HostTiming> {
  const { contexts, repetitions, numConcurrentRanks } = measuredRanks;
  const shape: StepShape = { tokens: 256, numHeads: 4, headDim: 64, dtype: "float32", attentionCalls: 1 };
  const numOperations = countOperations(recordStep(shape).ranks[0]!);
  const numExchanges = contexts[0]!.size > 1 ? numOperations : 0;
  const numRounds = 8 * (repetitions + 1);
  const [firstContext] = contexts as readonly [Context, ...Context[]];
  const step = firstContext.rank < numConcurrentRanks ? new LocalSteps(firstContext, shape) : undefined;
  const transferBuffers = contexts.map((ctx) => [full(ctx, [1], 0), full(ctx, [1], 0)] as const);
  const samples: HostTiming[] = [];
  try {
    for (let round = 0; round < numRounds; round++) {
      for (const { world } of contexts) world.barrier().wait();
      await synchronizeAll(contexts);
      const stepTimes = await step?.runAlone();
      const exchangeEnqueueMs = contexts.map((ctx, i) => enqueueExchanges(ctx, numExchanges, transferBuffers[i]!));
      await synchronizeAll(contexts);
      if (!stepTimes) continue;
      const enqueue = (stepTimes.enqueueMs + exchangeEnqueueMs[0]!) / 1e3 / (numOperations + 2 * numExchanges);
      samples.push({ enqueue, stepOverhead: Math.max(0, stepTimes.overheadMs) / 1e3 });
    }
  } finally {
    for (const buffer of transferBuffers.flat()) buffer.dispose();
    step?.[Symbol.dispose]();
  }
  // The first half is not used, because code is slow when it first runs, and steps are warm. The median of the rest is
  // used, because few samples include occasional host work such as garbage collection.
  const warmSamples = samples.slice(samples.length / 2);
  const computeMedian = (select: (sample: HostTiming) => number): number =>
    warmSamples.length > 0 ? median(warmSamples.map(select)) : 0;
  return {
    enqueue: computeMedian(({ enqueue }) => enqueue),
    stepOverhead: computeMedian(({ stepOverhead }) => stepOverhead),
  };
}

/** Returns the milliseconds in which a rank enqueues `numExchanges` exchanges of one element with its neighbors. */
function enqueueExchanges(
  ctx: Context,
  numExchanges: number,
  [sendBuffer, receiveBuffer]: readonly [Tensor, Tensor],
): number {
  const begin = performance.now();
  for (let i = 0; i < numExchanges; i++) ctx.world.sendRecv(neighborTransfers(ctx, sendBuffer, receiveBuffer)).wait();
  return performance.now() - begin;
}
