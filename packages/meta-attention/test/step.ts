import { normals } from "@mosaic/conformance";
import { add, type Context, fromArray, mul, reduceGradients, scale, shard, sum, type Tensor } from "@mosaic/core";
import {
  type ChosenChunks,
  entropyLoss,
  HierarchicalMetaAttention,
  type HierarchicalMetaAttentionOptions,
  loadBalanceLoss,
  type MetaForwardOptions,
  massLoss,
} from "../src/index.ts";
import { createShards } from "./chunked-shape.ts";

// One training step on every rank, with the results assembled.

/** A module and its input: x [batch,length,embedDim] of normally distributed numbers, sharded over the ranks. */
export interface Trial {
  readonly options: HierarchicalMetaAttentionOptions;
  readonly batch: number;
  readonly length: number;
  readonly seed: number;
  readonly forward?: MetaForwardOptions;
  /** Factors of the auxiliary losses: load balance, entropy, mass. */
  readonly losses?: readonly [number, number, number];
  /** The option `pool` of the mass loss. */
  readonly pool?: "peak" | "mean";
  /** The input, instead of normally distributed numbers. */
  readonly x?: Float64Array;
}

export interface RankResult {
  /** Positions of the rank's rows in the whole sequence. */
  readonly positions: readonly number[];
  readonly out: Float32Array;
  readonly dx: Float32Array;
  readonly parameters: Readonly<Record<string, Float32Array>>;
  readonly gradients: Readonly<Record<string, Float32Array>>;
  readonly chosen: ChosenChunks;
  readonly routing: Float32Array;
  readonly chunkAttention: Float32Array;
  readonly mass: Float32Array;
  readonly gate: Float32Array | null;
  readonly missed: Float32Array | null;
  readonly loss: number;
}

export function createInput({ options, batch, length, seed, x }: Trial): Float64Array {
  return x ?? normals(batch * length * options.embedDim, seed, options.dtype);
}

export function createUpstream({ options, batch, length, seed }: Trial): Float64Array {
  return normals(batch * length * options.embedDim, seed + 1, options.dtype);
}

/** Runs forward, backward and the reduction of gradients on this rank. */
export async function runStep(ctx: Context, trial: Trial): Promise<RankResult> {
  const { axis = "sp", dtype = "float32", placement = "contiguous" } = trial.options;
  using module = new HierarchicalMetaAttention(ctx, { sequenceLength: trial.length, ...trial.options });
  const shardInput = (values: Float64Array): Tensor => {
    using fullTensor = fromArray(ctx, values, [trial.batch, trial.length, trial.options.embedDim], { dtype });
    return shard(ctx, fullTensor, 1, { placement, axes: [axis] });
  };
  using x = shardInput(createInput(trial));
  using dOut = shardInput(createUpstream(trial));
  x.requiresGrad = true;
  using result = await module.forward(x, trial.forward);
  const { out, meta } = result;
  const [balance, entropy, mass] = trial.losses ?? [0, 0, 0];
  using weightedOut = mul(out, dOut);
  using float32WeightedOut = weightedOut.to("float32");
  using mainLoss = sum(float32WeightedOut);
  using balanceTerm = scale(loadBalanceLoss(meta), balance);
  using entropyTerm = scale(entropyLoss(meta), entropy);
  using massTerm = scale(massLoss(meta, trial.pool && { pool: trial.pool }), mass);
  using lossWithBalance = add(mainLoss, balanceTerm);
  using lossWithoutMass = add(lossWithBalance, entropyTerm);
  using loss = add(lossWithoutMass, massTerm);
  loss.backward();
  reduceGradients(ctx, module);
  const readParameters = async (select: (parameter: Tensor) => Tensor): Promise<Record<string, Float32Array>> => {
    const entries = module
      .namedParameters()
      .map(async ([name, parameter]) => [name, await select(parameter).read()] as const);
    return Object.fromEntries(await Promise.all(entries));
  };
  return {
    positions: createShards(trial, ctx.mesh.shape[axis]!)[ctx.mesh.coordinate[axis]!]!,
    out: await out.read(),
    dx: await x.grad!.read(),
    parameters: await readParameters((parameter) => parameter),
    gradients: await readParameters((parameter) => parameter.grad!),
    chosen: meta.chosen,
    routing: await meta.routingWeights.read(),
    chunkAttention: await meta.chunkAttention.read(),
    mass: await meta.attentionMass.read(),
    gate: (await meta.gateValues?.read()) ?? null,
    missed: (await meta.certificate?.missedMass.read()) ?? null,
    loss: await loss.item(),
  };
}
