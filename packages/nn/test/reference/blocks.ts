import { type Context, type DType, Module, MultiAxisAttention, reduceGradients, type Tensor } from "@mosaic/core";
import {
  AdamW,
  clipGradNorm,
  Embedding,
  type FullyShardOptions,
  linearCrossEntropy,
  ModuleList,
  type Optimizer,
  RMSNorm,
  RotaryEmbedding,
  summonFullParameters,
  SwiGLU,
} from "../../src/index.ts";
import { sliceForRank, generateSamples } from "./model.ts";

/** A stage of `fullyShard`. */
export type Stage = NonNullable<FullyShardOptions["stage"]>;
export const stages: readonly Stage[] = [1, 2, 3];

const [length, vocabulary, embedDim] = [12, 7, 16];

class Block extends Module {
  readonly norm: RMSNorm;
  readonly attention: MultiAxisAttention;
  readonly mlp: SwiGLU;

  constructor(ctx: Context, dtype: DType) {
    super();
    const layoutOptions = { placement: "zigzag", sequenceLength: length } as const;
    const heads = { embedDim, numHeads: 2, attentionAxis: 1, causal: true, backend: "ring", dtype } as const;
    const positions = new RotaryEmbedding(embedDim / 2);
    this.norm = this.addChild("norm", new RMSNorm(ctx, embedDim, { dtype }));
    this.attention = this.addChild("attention", new MultiAxisAttention(ctx, { ...heads, ...layoutOptions, positions }));
    this.mlp = this.addChild(
      "mlp",
      new SwiGLU(ctx, { embedDim, hiddenDim: 24, dropout: 0.1, sharding: layoutOptions, dtype }),
    );
  }

  forward(x: Tensor): Tensor {
    const y = x.add(this.attention.forward(this.norm.forward(x)));
    return y.add(this.mlp.forward(y));
  }
}

/** Options of Blocks. */
export interface BlocksOptions {
  readonly dtype?: DType;
  /** Calls a block, for example in a checkpoint. */
  readonly wrapBlock?: (block: Block, x: Tensor) => Tensor;
}

/**
 * A transformer of equal blocks in a ModuleList. Its head shares the weight of its embedding, and the output projection
 * is outside of its forward.
 */
export class Blocks extends Module {
  readonly embed: Embedding;
  readonly blocks: ModuleList<Block>;
  readonly norm: RMSNorm;
  readonly #wrapBlock: (block: Block, x: Tensor) => Tensor;

  constructor(
    ctx: Context,
    { dtype = "float32", wrapBlock: around = (block, x) => block.forward(x) }: BlocksOptions = {},
  ) {
    super();
    this.embed = this.addChild("embed", new Embedding(ctx, vocabulary, embedDim, { std: 0.5, dtype }));
    this.blocks = this.addChild("blocks", new ModuleList([0, 1, 2].map(() => new Block(ctx, dtype))));
    this.norm = this.addChild("norm", new RMSNorm(ctx, embedDim, { dtype }));
    this.#wrapBlock = around;
  }

  forward(tokens: Tensor): Tensor {
    let x = this.embed.forward(tokens);
    for (const block of this.blocks) x = this.#wrapBlock(block, x);
    return this.norm.forward(x);
  }
}

/** Returns the loss of a batch. */
export function forwardStep(ctx: Context, model: Blocks, step: number): Tensor {
  const { tokens, targets } = generateSamples(step);
  using x = sliceForRank(ctx, tokens);
  using y = sliceForRank(ctx, targets);
  using hidden = model.forward(x);
  return linearCrossEntropy(ctx, hidden, { weight: model.embed.weight }, y);
}

/** Runs forward and backward of a batch, and returns the loss. */
export function backwardStep(ctx: Context, model: Blocks, step: number): Tensor {
  const loss = forwardStep(ctx, model, step);
  loss.backward();
  return loss;
}

/** Runs one step. Resolves to the loss. */
export async function trainBlocks(
  ctx: Context,
  { model, optimizer, maxNorm = 1 }: { model: Blocks; optimizer: Optimizer; maxNorm?: number },
): Promise<number> {
  using loss = backwardStep(ctx, model, optimizer.steps);
  reduceGradients(ctx, model);
  if (maxNorm < Infinity) clipGradNorm(model, maxNorm).dispose();
  optimizer.step();
  optimizer.zeroGrad();
  return loss.item();
}

/** Creates an AdamW without weight decay for biases and norms. */
export const adamW = (model: Blocks): Optimizer =>
  new AdamW(model, { lr: 2e-2, forParameter: (_, { rank }) => (rank < 2 ? { weightDecay: 0 } : {}) });

/** Reads all elements of all parameters, sharded or not. */
export async function readParameters(model: Blocks): Promise<number[]> {
  const values = await summonFullParameters(model, () => Promise.all(model.parameters().map((each) => each.read())));
  return values.flatMap((each) => [...each]);
}

/** Returns the number of elements of a unit's buffer on each of n ranks. */
export function computeShardSize(sizes: readonly number[], ranks: number): number {
  const roundUp = (size: number): number => Math.ceil(size / 32) * 32;
  return roundUp(Math.ceil(sizes.reduce((sum, size) => sum + roundUp(size), 0) / ranks));
}

/** Returns the sizes of the parameters of each unit. The model's own parameters are last. */
export function listUnitSizes(model: Blocks): number[][] {
  const rootParameters = [...model.embed.parameters(), ...model.norm.parameters()];
  return [...[...model.blocks].map((block) => block.parameters()), rootParameters].map((unit) =>
    unit.map(({ size }) => size),
  );
}
