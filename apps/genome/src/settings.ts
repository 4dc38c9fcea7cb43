/** What a model attends with. */
export const methods = ["ring", "meta", "local"] as const;
export type Method = (typeof methods)[number];

/** The training task: bases hidden in λ, or repeats planted in it. */
export const tasks = ["genome", "planted"] as const;
export type Task = (typeof tasks)[number];

/** What the model is made of. */
export interface ModelSettings {
  readonly method: Method;
  /** Chunks that each chunk looks at beside itself, with "meta". */
  readonly topK: number;
  readonly embedDim: number;
  readonly heads: number;
  readonly layers: number;
  /** Chunks of the whole sequence, and bases in each. */
  readonly chunks: number;
  readonly chunkLength: number;
  /** Steps over which routing goes from all chunks to topK. */
  readonly warmup: number;
}

/** What one training does. */
export interface Settings extends ModelSettings {
  readonly task: Task;
  readonly ranks: number;
  /** Sequences in a step. */
  readonly batch: number;
  readonly steps: number;
  readonly learningRate: number;
  /** Weight of the loss that teaches the router where attention looks. */
  readonly teacher: number;
  readonly seed: number;
  /** Steps between checkpoints, and between evaluations. */
  readonly checkpointEvery: number;
  readonly evaluateEvery: number;
  /** Where the curve and the checkpoint are. */
  readonly folder: string;
}

/** "ring", "local", "meta 2". */
export function nameOf({ method, topK }: Pick<Settings, "method" | "topK">): string {
  return method === "meta" ? `meta ${topK}` : method;
}
