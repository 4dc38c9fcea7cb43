import { type Context, reduceGradients, scope, type Tensor } from "@mosaic/attention";
import { massLoss, type MetaResult } from "@mosaic/attention/meta";
import { AdamW, clipGradNorm, cosine, crossEntropy, linearWarmup, type ParameterOverrides } from "@mosaic/attention/nn";
import { loadBatch, SampleSource } from "./samples.ts";
import { GenomeModel } from "./model.ts";
import { IGNORE_INDEX } from "./masked-bases.ts";
import type { Settings } from "./settings.ts";
import { sumAttentionBytesSent } from "./cost.ts";

/** Number of warm-up steps of the learning rate. */
const WARMUP_STEPS = 20;

/**
 * Learning-rate factor of parameters that match words with words. Their initial values are suitable, and must not be
 * unlearned before other parameters use the matches.
 */
const QK_PATH_LR_SCALE = 0.05;
/**
 * Learning-rate factor of routers. They learn from one value per chunk instead of per base, so larger steps are safe.
 */
const ROUTER_LR_SCALE = 3;

const plantedOverrides = (name: string): ParameterOverrides => {
  if (/\.(summary|meta)\./.test(name)) return { lrScale: ROUTER_LR_SCALE };
  return /^(words|places)\.|norm1|qkv_proj/.test(name) ? { lrScale: QK_PATH_LR_SCALE } : {};
};

/** A model in training on any number of ranks, each with its part of every sequence. */
export class Trainer implements Disposable {
  readonly ctx: Context;
  readonly settings: Settings;
  readonly samples: SampleSource;
  readonly model: GenomeModel;
  readonly optimizer: AdamW;

  constructor(ctx: Context, settings: Settings) {
    const { learningRate: lr, steps, task } = settings;
    this.ctx = ctx;
    this.settings = settings;
    this.samples = new SampleSource(settings);
    this.model = new GenomeModel(ctx, settings);
    const parameterOverrides = task === "planted" ? plantedOverrides : () => ({});
    const schedule = linearWarmup(
      Math.min(WARMUP_STEPS, steps),
      cosine(Math.max(1, steps - WARMUP_STEPS), { end: 0.05 }),
    );
    this.optimizer = new AdamW(this.model, {
      lr,
      schedule,
      weightDecay: 0.01,
      betas: [0.9, 0.98],
      forParameter: parameterOverrides,
    });
  }

  /** Runs one step. Returns the mean cross-entropy of the masked bases, in nats, and the bytes that attention sent. */
  async step(): Promise<{ loss: number; bytes: number }> {
    const { ctx, model, optimizer, settings } = this;
    const step = optimizer.steps;
    using batch = loadBatch(ctx, this.samples.trainingSamples(step), settings);
    using output = await model.forward(batch.tokens, { step });
    using loss = crossEntropy(ctx, output.logits, batch.targets, { ignoreIndex: IGNORE_INDEX });
    scope(() => {
      this.#addMassLoss(loss, output.results).backward();
      reduceGradients(ctx, model);
      clipGradNorm(model, 1).dispose();
    });
    optimizer.step();
    optimizer.zeroGrad();
    return { loss: await loss.item(), bytes: await sumAttentionBytesSent(ctx, settings, output.results) };
  }

  /** Returns the loss plus the loss of the routers, which are trained on the attention mass of chunks. */
  #addMassLoss(loss: Tensor, results: readonly MetaResult[]): Tensor {
    const { teacher } = this.settings;
    if (teacher === 0) return loss;
    return results.reduce((totalLoss, { meta }) => totalLoss.add(massLoss(meta).scale(teacher)), loss);
  }

  [Symbol.dispose](): void {
    this.optimizer[Symbol.dispose]();
    this.model[Symbol.dispose]();
  }
}
