import type { Mask, Placement, PlacementName, Tensor } from "@mosaic/attention";

/** This rank's part of a step's rows. */
export interface TrainingBatch extends Disposable {
  /** [b,s] float32. */
  readonly tokens: Tensor;
  /** [b,s]; −100 where nothing is learnt. */
  readonly labels: Tensor;
  readonly mask: Mask | readonly Mask[];
  readonly placement: PlacementName | Placement;
  /** Tokens of a whole row. */
  readonly length: number;
}

/** Batches one after another; a state is plain JSON, from which others go on. */
export interface Batches<State> {
  next(): TrainingBatch;
  state(): State;
  load(state: State): void;
}

/** What a training learns from, and what it is judged by. */
export interface TrainingData extends Disposable {
  readonly train: Batches<unknown>;
  readonly heldOut: Batches<unknown>;
  /** Batches of an evaluation: at most all there are. */
  readonly numEvaluationBatches: number;
}
