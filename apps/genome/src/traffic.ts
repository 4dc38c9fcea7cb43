import { type Context, fromArray } from "@mosaic/attention";

const WORD = 4;

/**
 * What attention has sent, all ranks together: what was sent along the sequence while it ran. Two waits, and a message of
 * one number.
 */
export class SentByAttention {
  readonly #ctx: Context;
  #before = 0;

  constructor(ctx: Context) {
    this.#ctx = ctx;
  }

  /** Attention begins here. */
  begin(): void {
    this.#before = this.#now();
  }

  /** It has ended here; resolves to the bytes that all ranks sent meanwhile. */
  async end(): Promise<number> {
    const ctx = this.#ctx;
    if (ctx.size === 1) return 0;
    // Counted in words, so that float32 holds it exactly.
    using words = fromArray(ctx, [(this.#now() - this.#before) / WORD], [1]);
    ctx.world.allReduce(words, "sum", { label: "bytes" }).wait();
    return (await words.item()) * WORD;
  }

  #now(): number {
    return this.#ctx.mesh.group("sp").traffic().bytesSent;
  }
}
