import {
  checkSharding,
  type Context,
  defineOptions,
  layoutOf,
  Linear,
  Module,
  option,
  type OptionsOf,
  type Tensor,
} from "@mosaic/core";
import { checkRows, type Chunks, createChunks } from "./chunks.ts";
import { checkSelectedChunks, checkInput, ForwardPass } from "./pass.ts";
import { captureGradMode } from "./tensor-views.ts";
import type { MetaResult } from "./meta.ts";
import { type ChosenChunks, denseToSparse } from "./route/choose.ts";
import { MetaAttention } from "./route/meta-attention.ts";
import { type HierarchicalMetaAttentionOptions, type ResolvedOptions, resolveOptions } from "./options.ts";
import { ChunkSummaryEncoder } from "./encoder.ts";

export const metaForwardOptions = defineOptions("HierarchicalMetaAttention.forward", {
  /**
   * Index of the training step, for warm-up and noise. Default: the number of calls in training mode, counted from 0.
   */
  step: option.integer({ min: 0, optional: true }),
  /** Length of the whole sequence in this call. Default: the module's. */
  sequenceLength: option.integer({ min: 0, optional: true }),
  /**
   * Chunks to attend to, instead of those that the router would choose, by batch element and query chunk, with indices
   * as in `meta`. Default: the router's.
   */
  chosen: option.custom("an array of chunk indices for each batch element and query chunk", isChunkSelection, {
    optional: true,
  }),
  /**
   * Whether to read no values, for devices that have shapes but no values, such as the planner's. Requires `chosen`.
   * Default false.
   */
  dryRun: option.boolean({ default: false }),
});
/** Options of one call. */
export type MetaForwardOptions = OptionsOf<typeof metaForwardOptions>;

function isChunkSelection(value: unknown): value is ChosenChunks {
  const isArrayOfArrays = (each: unknown): each is readonly unknown[] =>
    Array.isArray(each) && each.every(Array.isArray);
  return Array.isArray(value) && value.every(isArrayOfArrays);
}

/**
 * Attention in which each chunk of the sequence attends to itself and to a few other chunks, which a learned router
 * chooses. Chunks are summarized, the summaries are gathered, and only chosen chunks are sent, point to point, while
 * each rank attends to its own. Differentiable throughout; docs/algorithms.md has the mathematics, the bytes and what
 * is estimated.
 *
 * The sequence is sharded along the mesh axis `axis` by `placement`. Each rank holds `chunksPerRank` chunks, or fewer
 * if its shard has fewer tokens; an empty shard has none. The result depends on the chunks, not on the ranks: 2 ranks
 * with 4 chunks each compute the same as 8 ranks with 1.
 *
 * Keys and values are sent in the input's dtype. Partial results and all gradients that are sent are float32 and
 * rounded once.
 *
 * Parameters: qkv_proj ([E → (H + 2·Hkv)·D], in the layout [q|k|v]), out_proj ([H·D → E]), gate_proj ([2·H·D → H·D],
 * unless gate is false), and the router's, float32: summary.* (see ChunkSummaryEncoder) and meta.* (see MetaAttention).
 * Like those of any module, they are replicated, so call `reduceGradients` after the backward.
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
 * @throws OptionError for unknown or incompatible options, such as a topK that exceeds the number of other chunks.
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
  /** The chunks of the last call, which are reused because most calls have the same length. */
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

  /** Number of chunks of the whole sequence, if no shard is too short for its chunks. */
  get chunks(): number {
    return this.#settings.chunks;
  }

  /**
   * Maps this rank's shard x [B,S,E] to out [B,S,E], with a report in `meta`. Collective along the axis: every rank
   * calls it with the same options, and runs the backward. Waits for the device twice, or three times with
   * maxMissedMass.
   *
   * @throws ShapeError for another length of the embedding or a wrong number of rows; OptionError; DTypeError;
   * ClosedError.
   */
  async forward(x: Tensor, options?: MetaForwardOptions): Promise<MetaResult> {
    const settings = this.#settings;
    const { name, warmupSteps: steps, routingNoise: std } = settings;
    this.#ctx.assertOpen(name);
    const call = metaForwardOptions.parse(options, `${name}.forward`);
    checkInput(x, settings);
    const [batch, rows] = x.shape as [number, number];
    const chunks = this.#createChunks(rows, call.sequenceLength);
    const { axis: meshAxis, placement } = settings;
    const mesh = this.#ctx.mesh.shape;
    const layout = layoutOf({ mesh, axes: [meshAxis], placement, length: chunks.length });
    checkSharding(`${name}, rank ${this.#ctx.rank}`, x, { axis: 1, layout, mesh });
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

  /** Returns the chunks of a sequence of which this rank holds `rows` rows. */
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
