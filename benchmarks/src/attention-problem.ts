import * as mosaic from "@mosaic/attention";
import { spansLength } from "@mosaic/attention/core";
import { now } from "./case.ts";

/** One attention to time: batch 1, as many key heads as heads. */
export interface AttentionProblem {
  readonly direction: "forward" | "backward";
  readonly dtype: "f32" | "bf16";
  readonly mask: "full" | "causal";
  /** Size of a head. */
  readonly d: number;
  /** Length of the whole sequence. */
  readonly n: number;
  readonly numHeads: number;
}

export function formatName({ direction, dtype, mask, d, n }: AttentionProblem): string {
  return `${direction}.${dtype}.${mask}.d${d}.n${n}`;
}

/** Forward two products of 2n²d, backward five; a causal mask halves them. */
export function countFlops({ direction, mask, d, n, numHeads }: AttentionProblem): number {
  return (direction === "forward" ? 4 : 10) * numHeads * n * n * d * (mask === "causal" ? 0.5 : 1);
}

/** A problem on one rank, over a backend: holds the operands, and times single runs. */
export class AttentionRun implements Disposable {
  readonly #ctx: mosaic.Context;
  readonly #problem: AttentionProblem;
  readonly #options: mosaic.AttentionOptions;
  readonly #operands: readonly [mosaic.Tensor, mosaic.Tensor, mosaic.Tensor];
  readonly #dOut: mosaic.Tensor;

  constructor(ctx: mosaic.Context, problem: AttentionProblem, backend: mosaic.AttentionBackend) {
    const { mask, n, d, numHeads, dtype } = problem;
    const placement = mask === "causal" ? mosaic.zigzag() : mosaic.contiguous();
    const layout = mosaic.layoutOf({ mesh: ctx.mesh.shape, axes: backend.axes, placement, length: n });
    const rows = spansLength(layout.spans(ctx.mesh.coordinate));
    const draw = (): mosaic.Tensor =>
      mosaic.randn(ctx, [1, numHeads, rows, d], { dtype: dtype === "f32" ? "float32" : "bfloat16" });
    this.#ctx = ctx;
    this.#problem = problem;
    this.#options = {
      backend,
      mask: mask === "causal" ? mosaic.masks.causal() : mosaic.masks.full(),
      queries: layout,
      keys: layout,
    };
    this.#operands = [draw(), draw(), draw()];
    this.#dOut = draw();
    for (const operand of this.#operands) operand.requiresGrad = problem.direction === "backward";
  }

  /** Runs it once and returns when it began and ended. All ranks of the context begin together. */
  async once(): Promise<{ begin: number; end: number }> {
    return this.#problem.direction === "forward" ? await this.#forward() : await this.#backward();
  }

  async #forward(): Promise<{ begin: number; end: number }> {
    const begin = await this.#start();
    using _ = mosaic.attention(this.#ctx, ...this.#operands, this.#options);
    await this.#ctx.device.stream.synchronize();
    return { begin, end: now() };
  }

  async #backward(): Promise<{ begin: number; end: number }> {
    using out = mosaic.attention(this.#ctx, ...this.#operands, this.#options);
    const begin = await this.#start();
    out.backward(this.#dOut);
    await this.#ctx.device.stream.synchronize();
    const end = now();
    for (const operand of this.#operands) {
      operand.grad?.dispose();
      operand.grad = null;
    }
    return { begin, end };
  }

  async #start(): Promise<number> {
    this.#ctx.world.barrier().wait();
    await this.#ctx.device.stream.synchronize();
    return now();
  }

  [Symbol.dispose](): void {
    for (const operand of [...this.#operands, this.#dOut]) operand.dispose();
  }
}
