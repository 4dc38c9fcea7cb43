import { type Context, Linear, Module, type Tensor, defineOptions, option, type OptionsOf } from "@mosaic/core";
import { checkRows, type Chunks, createChunks } from "./chunks.ts";
import { checkSelectedChunks, checkInput, ForwardPass } from "./pass.ts";
import { captureGradMode } from "./tensor-views.ts";
import type { MetaResult } from "./meta.ts";
import { type ChosenChunks, denseToSparse } from "./route/choose.ts";
import { MetaAttention } from "./route/meta-attention.ts";
import { type HierarchicalMetaAttentionOptions, type ResolvedOptions, resolveOptions } from "./options.ts";
import { ChunkSummaryEncoder } from "./encoder.ts";

export const metaForwardOptions = defineOptions("HierarchicalMetaAttention.forward", {
  /** Number of the training step, for warm-up and noise. Default: calls while training, counted from 0. */
  step: option.integer({ min: 0, optional: true }),
  /** Tokens of the whole sequence in this call. Default: the module's. */
  sequenceLength: option.integer({ min: 0, optional: true }),
  /** Look at these chunks instead of those that the router would choose; by batch element and query chunk, as numbered in `meta`. Default: the router's. */
  chosen: option.custom("an array of chunk indices for each batch element and query chunk", isChunkSelection, {
    optional: true,
  }),
  /** Read nothing: for devices with shapes and no values, such as the planner's. Needs `chosen`. Default false. */
  dryRun: option.boolean({ default: false }),
});
/** What one call may change. */
export type MetaForwardOptions = OptionsOf<typeof metaForwardOptions>;

function isChunkSelection(value: unknown): value is ChosenChunks {
  const isArrayOfArrays = (each: unknown): each is readonly unknown[] =>
    Array.isArray(each) && each.every(Array.isArray);
  return Array.isArray(value) && value.every(isArrayOfArrays);
}

/**
 * Attention in which each chunk of the sequence attends to itself and to the few other chunks that a learned router chose for
 * it. Chunks are summarised, the summaries gathered, and only chosen chunks travel, point to point, while each rank attends
 * to its own. Differentiable throughout; docs/algorithms.md has the mathematics, the bytes and what is estimated.
 *
 * The sequence is cut along the mesh axis `axis` by `placement`; each rank holds `chunksPerRank` chunks, or as many as its
 * shard has tokens for, and an empty shard none. The result depends on the chunks, not on the ranks: 2 ranks of 4 chunks
 * compute what 8 ranks of 1 do.
 *
 * Keys and values travel in the input's dtype; partial results and all gradients on their way are float32 and rounded once.
 *
 * Parameters: qkv_proj ([E → (H + 2·Hkv)·D], laid out [q|k|v]), out_proj ([H·D → E]), gate_proj ([2·H·D → H·D], unless gate is
 * false), and the router's, float32: summary.* (see ChunkSummaryEncoder) and meta.* (see MetaAttention). Like those of any
 * module they are replicated; call `reduceGradients` after the backward.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { HierarchicalMetaAttention } from "@mosaic/meta-attention";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using attn = new HierarchicalMetaAttention(ctx, { embedDim: 16, numHeads: 2, topK: 1, chunksPerRank: 4, combine: "exact" });
 * using x = randn(ctx, [2, 40, 16]);
 * using result = await attn.forward(x);
 * const { out, meta } = result;
 * out.shape; // => [2, 40, 16]
 * meta.routingWeights.shape; // => [2, 4, 4]
 * meta.chosen[0]!.map((chunks) => chunks.length); // => [1, 1, 1, 1]
 * ```
 * @throws OptionError for options that do not exist or do not go together, such as more chunks to choose than there are.
 */
export class HierarchicalMetaAttention extends Module {
  readonly qkvProjection: Linear;
  readonly outProjection: Linear;
  readonly gateProjection: Linear | null;
  readonly summary: ChunkSummaryEncoder;
  readonly metaAttention: MetaAttention;
  readonly #ctx: Context;
  readonly #settings: ResolvedOptions;
  readonly #noiseStream: number;
  #numTrainingCalls = 0;
  /** Those of the last call: most calls are of one length. */
  #chunks: Chunks | undefined;

  constructor(ctx: Context, options: HierarchicalMetaAttentionOptions) {
    super();
    const settings = resolveOptions(new.target.name, ctx, options);
    const { embedDim, numHeads, numKvHeads, headDim, summaryDim, summaryHeads, metaHeads, bias, dtype } = settings;
    const width = numHeads * headDim;
    this.#ctx = ctx;
    this.#settings = settings;
    this.qkvProjection = this.addChild(
      "qkv_proj",
      new Linear(ctx, embedDim, width + 2 * numKvHeads * headDim, { bias, dtype }),
    );
    this.outProjection = this.addChild("out_proj", new Linear(ctx, width, embedDim, { bias, dtype }));
    const gate = settings.gate ? new Linear(ctx, 2 * width, width, { dtype }) : null;
    this.gateProjection = gate && this.addChild("gate_proj", gate);
    const encoder = new ChunkSummaryEncoder(ctx, { embedDim, summaryDim, numHeads: summaryHeads });
    this.summary = this.addChild("summary", encoder);
    this.metaAttention = this.addChild("meta", new MetaAttention(ctx, { summaryDim, numHeads: metaHeads }));
    this.#noiseStream = ctx.nextRandomStream();
  }

  /** Chunks of the whole sequence, if no shard is too short for its own. */
  get chunks(): number {
    return this.#settings.chunks;
  }

  /**
   * This rank's shard x [B,S,E] → out [B,S,E] and what was done for it. Collective along the axis: every rank calls it, and
   * runs the backward, with the same options. Waits for the device twice, three times with maxMissedMass.
   *
   * @throws ShapeError for another embedding or rows that do not fit; OptionError; DTypeError; ClosedError.
   */
  async forward(x: Tensor, options?: MetaForwardOptions): Promise<MetaResult> {
    const settings = this.#settings;
    const { name, warmupSteps: steps, routingNoise: std } = settings;
    this.#ctx.assertOpen(name);
    const call = metaForwardOptions.parse(options, `${name}.forward`);
    checkInput(x, settings);
    const [batch, rows] = x.shape as [number, number];
    const chunks = this.#createChunks(rows, call.sequenceLength);
    const { visibility } = chunks;
    if (call.chosen || call.dryRun) checkSelectedChunks(name, call.chosen, { batch, visibility });
    const step = call.step ?? (this.training ? this.#numTrainingCalls++ : 0);
    const topK = this.training
      ? denseToSparse(step, { topK: settings.topK, chunks: settings.chunks, steps })
      : settings.topK;
    const parts = { ...this.#parts(), ctx: this.#ctx, settings, chunks };
    const noise = this.training && std > 0 ? { std, stream: this.#noiseStream, step } : null;
    using pass = new ForwardPass(parts, x, captureGradMode());
    return await pass.run({ topK, noise, chosen: call.chosen, dryRun: call.dryRun });
  }

  /** The chunks of a sequence of which this rank holds so many rows. */
  #createChunks(rows: number, sequenceLength: number | undefined): Chunks {
    const { name, axis, placement, mask, chunksPerRank, sequenceLength: defaultLength } = this.#settings;
    const length = sequenceLength ?? defaultLength ?? rows * this.#ctx.mesh.shape[axis]!;
    if (this.#chunks?.length !== length) {
      this.#chunks = createChunks(name, this.#ctx, { axis, placement, mask, chunksPerRank, length });
    }
    checkRows(`${name}, rank ${this.#ctx.rank}`, rows, this.#chunks);
    return this.#chunks;
  }

  #parts(): Pick<
    HierarchicalMetaAttention,
    "qkvProjection" | "outProjection" | "gateProjection" | "summary" | "metaAttention"
  > {
    const { qkvProjection, outProjection, gateProjection, summary, metaAttention } = this;
    return { qkvProjection, outProjection, gateProjection, summary, metaAttention };
  }
}
