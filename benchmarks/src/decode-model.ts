import * as mosaic from "@mosaic/attention";
import * as nn from "@mosaic/attention/nn";
import type { AttentionCache } from "@mosaic/core";

/** A decoding model: blocks like those of Llama, without embedding and head. */
export interface DecodeModelProblem {
  readonly embedDim: number;
  readonly hiddenDim: number;
  readonly numLayers: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  /** Number of sequences. */
  readonly batch: number;
  /** Number of tokens of each sequence in the cache. */
  readonly length: number;
  readonly dtype: "float32" | "bfloat16";
}

class Block extends mosaic.Module {
  readonly norm1: nn.RMSNorm;
  readonly norm2: nn.RMSNorm;
  readonly attention: mosaic.MultiAxisAttention;
  readonly mlp: nn.SwiGLU;

  constructor(ctx: mosaic.Context, problem: DecodeModelProblem, positions: nn.RotaryEmbedding) {
    super();
    const { embedDim, hiddenDim, numHeads, numKvHeads, dtype } = problem;
    const options = { embedDim, numHeads, numKvHeads, attentionAxis: 1, causal: true, bias: false, positions, dtype };
    this.norm1 = this.addChild("norm1", new nn.RMSNorm(ctx, embedDim, { dtype }));
    this.norm2 = this.addChild("norm2", new nn.RMSNorm(ctx, embedDim, { dtype }));
    this.attention = this.addChild("attention", new mosaic.MultiAxisAttention(ctx, { ...options, backend: "local" }));
    this.mlp = this.addChild("mlp", new nn.SwiGLU(ctx, { embedDim, hiddenDim, dtype }));
  }

  forward(x: mosaic.Tensor, cache: AttentionCache): mosaic.Tensor {
    const y = x.add(this.attention.forward(this.norm1.forward(x), { cache }));
    return y.add(this.mlp.forward(this.norm2.forward(y)));
  }
}

/** Number of steps for which a cache has room. */
const MAX_CACHED_STEPS = 4096;

/** A model and a filled cache. `step` decodes one token of each sequence. */
export class DecodeRun implements Disposable {
  readonly #ctx: mosaic.Context;
  readonly #problem: DecodeModelProblem;
  readonly #blocks: readonly Block[];
  readonly #cache: nn.KvCache;
  readonly #sequences: readonly nn.CacheSequence[];
  readonly #x: mosaic.Tensor;

  constructor(ctx: mosaic.Context, problem: DecodeModelProblem) {
    const { numLayers, numKvHeads, numHeads, embedDim, batch, length, dtype } = problem;
    const headDim = embedDim / numHeads;
    const positions = new nn.RotaryEmbedding(headDim);
    this.#ctx = ctx;
    this.#problem = problem;
    this.#blocks = Array.from({ length: numLayers }, () => new Block(ctx, problem, positions));
    const maxTokens = batch * (length + MAX_CACHED_STEPS);
    this.#cache = new nn.KvCache(ctx, { numLayers, numKvHeads, headDim, maxTokens, dtype });
    this.#sequences = Array.from({ length: batch }, () => this.#cache.createSequence());
    // The input is the same on every rank.
    this.#x = mosaic.randn(ctx, [batch, 1, embedDim], { dtype, seed: 1, stream: 1 });
    const chunk = 1024;
    for (let start = 0; start < length; start += chunk) {
      const rows = Math.min(chunk, length - start);
      for (let layer = 0; layer < numLayers; layer++) {
        using kv = mosaic.randn(ctx, [batch, numKvHeads, rows, headDim], { dtype, seed: 1, stream: layer });
        this.#cache.layer(layer, this.#sequences).append(kv, kv);
      }
    }
  }

  /** Enqueues one step. */
  step(): void {
    const { length } = this.#problem;
    if (this.#sequences[0]!.length === length + MAX_CACHED_STEPS)
      for (const sequence of this.#sequences) sequence.truncate(length);
    const out = mosaic.noGrad(() =>
      mosaic.scope(() => {
        let y = this.#x;
        for (const [i, block] of this.#blocks.entries()) y = block.forward(y, this.#cache.layer(i, this.#sequences));
        return y;
      }),
    );
    out.dispose();
  }

  synchronize(): Promise<void> {
    return this.#ctx.device.stream.synchronize();
  }

  [Symbol.dispose](): void {
    this.#cache.dispose();
    for (const block of this.#blocks) block.dispose();
    this.#x.dispose();
  }
}
