import * as mosaic from "@mosaic/attention";
import { spansLength } from "@mosaic/attention/core";
import { now } from "./case.ts";

/**
 * window: each query attends to itself and the 1 023 keys before it. documents: causal, lengths from n / 32 to n / 4.
 */
const createMask = {
  full: () => mosaic.masks.full(),
  causal: () => mosaic.masks.causal(),
  window: () => mosaic.masks.slidingWindow(1024),
  documents: (n: number) =>
    mosaic.masks.documents(
      DOCUMENT_LENGTHS_IN_32NDS.map((share) => (share * n) / 32),
      "causal",
    ),
} as const;

/** Lengths of packed documents, in 32nds of the sequence. */
const DOCUMENT_LENGTHS_IN_32NDS = [8, 1, 3, 2, 6, 1, 4, 5, 2];

/** One attention problem to time, with as many KV heads as query heads. */
export interface AttentionProblem {
  readonly direction: "forward" | "backward";
  readonly dtype: "f32" | "bf16";
  readonly mask: keyof typeof createMask;
  /** Size of a head. */
  readonly d: number;
  /** Length of the whole sequence. */
  readonly n: number;
  readonly numHeads: number;
  /** Default 1. */
  readonly batch?: number;
}

export function formatName({ direction, dtype, mask, d, n, batch }: AttentionProblem): string {
  return `${direction}.${dtype}.${mask}.d${d}.n${n}${batch === undefined ? "" : `.b${batch}`}`;
}

/**
 * Counts operations: two products of 2d per visible pair in the forward, five in the backward. A causal mask has n² / 2
 * pairs.
 */
export function countFlops({ direction, mask, d, n, numHeads, batch = 1 }: AttentionProblem): number {
  const pairs = mask === "causal" ? 0.5 * n * n : mosaic.masks.maskArea(createMask[mask](n), n, n);
  return (direction === "forward" ? 4 : 10) * batch * numHeads * pairs * d;
}

/** A problem on one rank with a backend. It holds the operands and times single runs. */
export class AttentionRun implements Disposable {
  readonly #ctx: mosaic.Context;
  readonly #problem: AttentionProblem;
  readonly #options: mosaic.AttentionOptions;
  readonly #operands: readonly [mosaic.Tensor, mosaic.Tensor, mosaic.Tensor];
  readonly #dOut: mosaic.Tensor;

  constructor(ctx: mosaic.Context, problem: AttentionProblem, backend: mosaic.AttentionBackend) {
    const { mask, n, d, numHeads, dtype, batch = 1 } = problem;
    const placement = mask === "causal" ? mosaic.zigzag() : mosaic.contiguous();
    const layout = mosaic.layoutOf({ mesh: ctx.mesh.shape, axes: backend.axes, placement, length: n });
    const rows = spansLength(layout.spans(ctx.mesh.coordinate));
    const drawTensor = (): mosaic.Tensor =>
      mosaic.randn(ctx, [batch, numHeads, rows, d], { dtype: dtype === "f32" ? "float32" : "bfloat16" });
    this.#ctx = ctx;
    this.#problem = problem;
    this.#options = {
      backend,
      mask: createMask[mask](n),
      queries: layout,
      keys: layout,
    };
    this.#operands = [drawTensor(), drawTensor(), drawTensor()];
    this.#dOut = drawTensor();
    for (const operand of this.#operands) operand.requiresGrad = problem.direction === "backward";
  }

  /** Runs the problem once and returns when it began and ended. All ranks of the context begin together. */
  async runOnce(): Promise<{ begin: number; end: number }> {
    return this.#problem.direction === "forward" ? await this.#forward() : await this.#backward();
  }

  async #forward(): Promise<{ begin: number; end: number }> {
    const begin = await this.#synchronizeStart();
    using _ = mosaic.attention(this.#ctx, ...this.#operands, this.#options);
    await this.#ctx.device.stream.synchronize();
    return { begin, end: now() };
  }

  async #backward(): Promise<{ begin: number; end: number }> {
    using out = mosaic.attention(this.#ctx, ...this.#operands, this.#options);
    const begin = await this.#synchronizeStart();
    out.backward(this.#dOut);
    await this.#ctx.device.stream.synchronize();
    const end = now();
    for (const operand of this.#operands) {
      operand.grad?.dispose();
      operand.grad = null;
    }
    return { begin, end };
  }

  async #synchronizeStart(): Promise<number> {
    this.#ctx.world.barrier().wait();
    await this.#ctx.device.stream.synchronize();
    return now();
  }

  [Symbol.dispose](): void {
    for (const operand of [...this.#operands, this.#dOut]) operand.dispose();
  }
}
