/** One line of a training's log. */
export interface CurvePoint {
  /** Steps taken. */
  readonly step: number;
  /** Mean cross-entropy of that step's hidden bases, nats. */
  readonly loss: number;
  /** What attention alone has sent so far, all ranks together. */
  readonly bytes: number;
  /** Multiply-adds so far, all ranks together. */
  readonly work: number;
  /** Of held-out sequences, at the steps that evaluate. */
  readonly held?: Evaluation;
}

/** What is known of a model on held-out sequences. */
export interface Evaluation {
  readonly loss: number;
  /** Planted repeats: share of them whose source is among the first two chunks chosen, in the last layer. */
  readonly recall?: number;
}
