/** One line of a training's log. */
export interface CurvePoint {
  /** Number of completed steps. */
  readonly step: number;
  /** Mean cross-entropy of the step's masked bases, in nats. */
  readonly loss: number;
  /** Bytes sent by attention so far, on all ranks together. */
  readonly bytes: number;
  /** Number of multiply-adds so far, on all ranks together. */
  readonly work: number;
  /** Evaluation on held-out sequences, at the steps with an evaluation. */
  readonly held?: Evaluation;
}

/** Evaluation of a model on held-out sequences. */
export interface Evaluation {
  readonly loss: number;
  /** For planted repeats: share of the pairs whose source is among the first topK chunks chosen in the last layer. */
  readonly recall?: number;
}
