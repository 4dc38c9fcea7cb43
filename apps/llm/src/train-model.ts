import { type Context, noGrad, reduceGradients, scope, type Tensor } from "@mosaic/attention";
import { broadcastObject } from "@mosaic/attention/core";
import {
  AdamW,
  clipGradNorm,
  findCheckpoint,
  fullyShard,
  inverseSquareRoot,
  linearCrossEntropy,
  linearWarmup,
  loadCheckpoint,
  saveCheckpoint,
  type Schedule,
} from "@mosaic/attention/nn";
import type { CausalLM } from "@mosaic/models";
import { LearningCurve } from "@mosaic/program";
import type { TrainingBatch, TrainingData } from "./batches.ts";
import { createModel, folderFilePaths } from "./model-folder.ts";
import type { TrainSettings } from "./settings.ts";
import { openTrainingData } from "./training-data.ts";

/** One line of a training's log. */
export interface LossPoint {
  readonly step: number;
  /** Mean cross-entropy of the step's tokens, in nats. */
  readonly loss: number;
  /** Loss on held-out books, at the steps with an evaluation. */
  readonly heldOut?: number;
}

/** Data of a checkpoint in addition to model and optimizer. */
interface TrainingProgress {
  readonly loader: unknown;
  readonly seconds: number;
}

/** Number of warm-up steps, and approximate number of steps after which the learning rate has decayed to 1/√2. */
const [WARMUP_STEPS, DECAY_STEPS] = [20, 400];

/**
 * Last share of a training on needles, in which the learning rate decays to 0. A training on text is limited by time,
 * so its schedule must not depend on the number of steps.
 */
const FINAL_DECAY_SHARE = 0.2;

/** Returns the schedule: the factor on the learning rate of each step. */
export function createSchedule({ task, steps }: Pick<TrainSettings, "task" | "steps">): Schedule {
  const schedule = linearWarmup(WARMUP_STEPS, inverseSquareRoot(DECAY_STEPS));
  if (task === "text") return schedule;
  return (step) => schedule(step) * Math.min(1, (steps - step) / (FINAL_DECAY_SHARE * steps));
}

/** Computes the loss of a batch, which is the same on every rank and mesh. */
function computeBatchLoss(ctx: Context, { decoder, head }: CausalLM, batch: TrainingBatch): Tensor {
  const { tokens, labels, mask, placement, length } = batch;
  return scope(() => {
    const hidden = decoder.forward(tokens, { mask, placement, sequenceLength: length });
    return linearCrossEntropy(ctx, hidden, head, labels);
  });
}

/** A model in training, on any mesh. */
class Training implements Disposable {
  readonly model: CausalLM;
  readonly optimizer: AdamW;
  readonly data: TrainingData;
  readonly #ctx: Context;

  constructor(ctx: Context, settings: TrainSettings) {
    const { out, backend, dp, zero, replicas, learningRate: lr } = settings;
    this.#ctx = ctx;
    this.model = createModel(ctx, out, backend);
    const axis = replicas > 1 ? "dp_shard" : "dp";
    if (dp > replicas && zero > 0) fullyShard(ctx, this.model, { stage: zero as 1 | 2 | 3, axis });
    const schedule = createSchedule(settings);
    const parameterOverrides = (_: string, { rank }: Tensor) => (rank < 2 ? { weightDecay: 0 } : {});
    this.optimizer = new AdamW(this.model, {
      lr,
      schedule,
      weightDecay: 0.1,
      betas: [0.9, 0.95],
      forParameter: parameterOverrides,
    });
    this.data = openTrainingData(ctx, settings);
  }

  /** Runs one step. Resolves to its loss. */
  async step(): Promise<number> {
    const { model, optimizer } = this;
    using batch = this.data.train.next();
    using loss = computeBatchLoss(this.#ctx, model, batch);
    loss.backward();
    reduceGradients(this.#ctx, model);
    clipGradNorm(model, 1).dispose();
    optimizer.step();
    optimizer.zeroGrad();
    return loss.item();
  }

  /** Returns the mean loss of the held-out rows, which are the same in every call. */
  async evaluate(): Promise<number> {
    const { heldOut, numEvaluationBatches: numBatches } = this.data;
    const initialState = heldOut.state();
    let lossSum = 0;
    for (let i = 0; i < numBatches; i++) {
      using batch = heldOut.next();
      using loss = noGrad(() => computeBatchLoss(this.#ctx, this.model, batch));
      lossSum += await loss.item();
    }
    heldOut.load(initialState);
    return lossSum / numBatches;
  }

  [Symbol.dispose](): void {
    for (const resource of [this.data, this.optimizer, this.model]) resource[Symbol.dispose]();
  }
}

/** Report of rank 0 after each step. */
export interface TrainReport extends LossPoint {
  /** Completed share of the training, by steps or by minutes, whichever is greater. */
  readonly share: number;
}

/**
 * Trains on each rank until the steps or the minutes are over, from the checkpoint in the folder if there is one, and
 * writes the weights. Rank 0 writes the curve. Resolves to the number of steps.
 */
export async function trainModel(
  ctx: Context,
  settings: TrainSettings,
  onProgress: (report: TrainReport) => void,
): Promise<number> {
  const { out, checkpointEvery, evaluateEvery } = settings;
  const paths = folderFilePaths(out);
  using training = new Training(ctx, settings);
  const { model, optimizer } = training;
  const loader = training.data.train;
  let seconds = 0;
  if (await findCheckpoint(ctx, paths.checkpoint)) {
    const data = (await loadCheckpoint(ctx, paths.checkpoint, { model, optimizer })).data as TrainingProgress;
    loader.load(data.loader);
    seconds = data.seconds;
  }
  const curve = ctx.rank === 0 ? new LearningCurve<LossPoint>(paths.curve) : undefined;
  curve?.truncateAfter(optimizer.steps);
  const startSeconds = performance.now() / 1000 - seconds;
  const getElapsedSeconds = (): number => performance.now() / 1000 - startSeconds;
  const save = (): Promise<void> => {
    const data: TrainingProgress = { loader: loader.state(), seconds: getElapsedSeconds() };
    return saveCheckpoint(ctx, paths.checkpoint, { model, optimizer, data });
  };
  let share = await computeProgress(ctx, settings, { step: optimizer.steps, seconds: getElapsedSeconds() });
  while (share < 1) {
    const loss = await training.step();
    const step = optimizer.steps;
    share = await computeProgress(ctx, settings, { step, seconds: getElapsedSeconds() });
    const isEvaluationStep = step % evaluateEvery === 0 || share >= 1;
    const point = { step, loss, ...(isEvaluationStep && { heldOut: await training.evaluate() }) };
    curve?.append(point);
    if (step % checkpointEvery === 0 || share >= 1) await save();
    onProgress({ ...point, share });
  }
  await model.save(out);
  return optimizer.steps;
}

/** Returns the completed share of a training. Rank 0's clock is used, so that all ranks stop at the same step. */
async function computeProgress(
  ctx: Context,
  { steps, minutes }: TrainSettings,
  trainingProgress: { readonly step: number; readonly seconds: number },
): Promise<number> {
  const stepShare = steps > 0 ? trainingProgress.step / steps : 0;
  if (minutes === 0) return stepShare;
  const seconds = await broadcastObject(ctx, trainingProgress.seconds, 0, { label: "time" });
  return Math.max(stepShare, seconds / (60 * minutes));
}
