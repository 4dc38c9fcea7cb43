import {
  attention,
  type Context,
  contiguous,
  type DType,
  full,
  type Layout,
  layoutOf,
  local,
  masks,
  randn,
  type Tensor,
} from "@mosaic/core";
import { type AttentionRecord, record } from "../record.ts";
import { eventSpan, neighborTransfers, type TimeSpan } from "./measure.ts";

/**
 * Shape of a calibration step: attention, forward and backward, of a rank's tokens to themselves, `attentionCalls`
 * times.
 */
export interface StepShape {
  readonly tokens: number;
  readonly numHeads: number;
  readonly headDim: number;
  readonly dtype: DType;
  readonly attentionCalls: number;
}

/** Records one attention of a step. */
export function recordStep({ tokens, numHeads, headDim, dtype }: StepShape): AttentionRecord {
  return record({ backend: local(), mesh: { one: 1 }, tokens, numHeads, headDim, dtype });
}

/**
 * Returns the bytes that a rank sends, and also receives, in an exchange of a step: the keys and values of its tokens.
 */
export function countExchangeBytesSent({ tokens, numHeads, headDim }: StepShape): number {
  return 2 * 4 * tokens * numHeads * headDim;
}

/** Repeated steps on one rank. */
export class LocalSteps implements Disposable {
  readonly #ctx: Context;
  readonly #attentionCalls: number;
  readonly #layout: Layout;
  readonly #inputs: readonly [Tensor, Tensor, Tensor];
  readonly #dOut: Tensor;
  readonly #sendBuffer: Tensor;
  readonly #receiveBuffer: Tensor;

  constructor(ctx: Context, shape: StepShape) {
    const { tokens, numHeads, headDim, dtype, attentionCalls } = shape;
    this.#ctx = ctx;
    this.#attentionCalls = attentionCalls;
    this.#layout = layoutOf({ mesh: {}, axes: [], placement: contiguous(), length: tokens });
    const createRandom = (): Tensor => randn(ctx, [1, numHeads, tokens, headDim], { dtype });
    this.#inputs = [createRandom(), createRandom(), createRandom()];
    this.#dOut = createRandom();
    for (const input of this.#inputs) input.requiresGrad = true;
    const elements = countExchangeBytesSent(shape) / 4;
    this.#sendBuffer = full(ctx, [elements], 0);
    this.#receiveBuffer = full(ctx, [elements], 0);
  }

  /**
   * Runs a step without exchanges. Returns the milliseconds in which the host enqueues it, and by which it lasts longer
   * than its operations.
   */
  async runAlone(): Promise<{ readonly enqueueMs: number; readonly overheadMs: number }> {
    const ctx = this.#ctx;
    ctx.startTrace();
    const begin = performance.now();
    const outputs = this.#enqueue(() => {});
    const enqueueMs = performance.now() - begin;
    await ctx.device.stream.synchronize();
    this.#release(outputs);
    const elapsedMs = performance.now() - begin;
    const { start, end } = eventSpan(await ctx.stopTrace());
    return { enqueueMs, overheadMs: elapsedMs - (end - start) / 1e6 };
  }

  /**
   * Runs several steps. At each attention, a rank waits for its left neighbor. Returns the span from the first
   * operation to the last.
   */
  async runTogether(steps: number): Promise<TimeSpan> {
    const ctx = this.#ctx;
    const transfers = neighborTransfers(ctx, this.#sendBuffer, this.#receiveBuffer);
    ctx.startTrace();
    for (let step = 0; step < steps; step++) {
      const outputs = this.#enqueue(() => ctx.world.sendRecv(transfers).wait());
      await ctx.device.stream.synchronize();
      this.#release(outputs);
    }
    return eventSpan(await ctx.stopTrace());
  }

  #enqueue(exchange: () => void): readonly Tensor[] {
    const options = { backend: local(), mask: masks.full(), queries: this.#layout, keys: this.#layout };
    return Array.from({ length: this.#attentionCalls }, () => {
      exchange();
      const out = attention(this.#ctx, ...this.#inputs, options);
      out.backward(this.#dOut);
      return out;
    });
  }

  #release(outputs: readonly Tensor[]): void {
    for (const out of outputs) out.dispose();
    for (const input of this.#inputs) {
      input.grad?.dispose();
      input.grad = null;
    }
  }

  [Symbol.dispose](): void {
    for (const tensor of [...this.#inputs, this.#dOut, this.#sendBuffer, this.#receiveBuffer]) tensor.dispose();
  }
}
