/** Targets of positions that do not count. */
export const IGNORED = -100;

/** One sequence: inputs and targets of a model. */
export interface Sample {
  /** Bases 0 to 3, `MASKED` where hidden [S]. */
  readonly letters: Uint8Array;
  /** The hidden bases, `IGNORED` elsewhere [S]. */
  readonly targets: Float32Array;
}

/** A sequence that is cut into chunks, one of which explains what is hidden in another. */
export interface Planted extends Sample {
  /** For each chunk with something hidden the chunk that holds the copy. */
  readonly sources: ReadonlyMap<number, number>;
}
