import type { Mask, Placement, PlacementName, Tensor } from "@mosaic/attention";

/** This rank's part of the rows of a step. */
export interface TrainingBatch extends Disposable {
  /** [b,s] float32. */
  readonly tokens: Tensor;
  /** [b,s]. −100 for tokens without a loss. */
  readonly labels: Tensor;
  readonly mask: Mask | readonly Mask[];
  readonly placement: PlacementName | Placement;
  /** Number of tokens in a complete row. */
  readonly length: number;
}

/** A sequence of batches. Its state is plain JSON, from which another instance can continue. */
export interface Batches<State> {
  next(): TrainingBatch;
  state(): State;
  load(state: State): void;
}

/** Batches for training, and held-out batches for evaluation. */
export interface TrainingData extends Disposable {
  readonly train: Batches<unknown>;
  readonly heldOut: Batches<unknown>;
  /** Number of batches of an evaluation, at most all held-out batches. */
  readonly numEvaluationBatches: number;
}
