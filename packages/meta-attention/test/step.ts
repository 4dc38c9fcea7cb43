import { normals } from "@mosaic/conformance";
import { add, type Context, fromArray, mul, reduceGradients, scale, sum, type Tensor } from "@mosaic/core";
import {
  type Chosen,
  entropyLoss,
  HierarchicalMetaAttention,
  type HierarchicalMetaAttentionOptions,
  loadBalanceLoss,
  type MetaForwardOptions,
  massLoss,
} from "../src/index.ts";

// One step of training on every rank, put together again.

/** A module and its input: x [batch,length,embedDim] of normal numbers, cut over the ranks. */
export interface Trial {
  readonly options: HierarchicalMetaAttentionOptions;
  readonly batch: number;
  readonly length: number;
  readonly seed: number;
  readonly forward?: MetaForwardOptions;
  /** Factors of the auxiliary losses: load balance, entropy, mass. */
  readonly losses?: readonly [number, number, number];
  /** Of the mass loss. */
  readonly pool?: "peak" | "mean";
  /** Instead of normal numbers. */
  readonly x?: Float64Array;
}

export interface RankResult {
  /** First local row in the whole sequence, and how many. */
  readonly start: number;
  readonly rows: number;
  readonly out: Float32Array;
  readonly dx: Float32Array;
  readonly parameters: Readonly<Record<string, Float32Array>>;
  readonly gradients: Readonly<Record<string, Float32Array>>;
  readonly chosen: Chosen;
  readonly routing: Float32Array;
  readonly chunkAttention: Float32Array;
  readonly mass: Float32Array;
  readonly gate: Float32Array | null;
  readonly missed: Float32Array | null;
  readonly loss: number;
}

export function inputOf({ options, batch, length, seed, x }: Trial): Float64Array {
  return x ?? normals(batch * length * options.embedDim, seed);
}

export function upstreamOf({ options, batch, length, seed }: Trial): Float64Array {
  return normals(batch * length * options.embedDim, seed + 1);
}

/** Forward, backward and the reduction of gradients on this rank. */
export async function stepOn(ctx: Context, trial: Trial): Promise<RankResult> {
  const { axis = "sp" } = trial.options;
  using module = new HierarchicalMetaAttention(ctx, { sequenceLength: trial.length, ...trial.options });
  const { start, rows } = shardOf(trial.length, ctx.mesh.shape[axis]!, ctx.mesh.coordinate[axis]!);
  const shard = (values: Float64Array): Tensor => {
    using whole = fromArray(ctx, values, [trial.batch, trial.length, trial.options.embedDim]);
    using part = whole.slice(1, start, start + rows);
    return part.contiguous();
  };
  using x = shard(inputOf(trial));
  using dOut = shard(upstreamOf(trial));
  x.requiresGrad = true;
  using result = await module.forward(x, trial.forward);
  const { out, meta } = result;
  const [balance, entropy, mass] = trial.losses ?? [0, 0, 0];
  using main = mul(out, dOut);
  using first = sum(main);
  using second = scale(loadBalanceLoss(meta), balance);
  using third = scale(entropyLoss(meta), entropy);
  using fourth = scale(massLoss(meta, trial.pool && { pool: trial.pool }), mass);
  using half = add(first, second);
  using most = add(half, third);
  using loss = add(most, fourth);
  loss.backward();
  reduceGradients(ctx, module);
  const values = async (of: (parameter: Tensor) => Tensor): Promise<Record<string, Float32Array>> => {
    const entries = module
      .namedParameters()
      .map(async ([name, parameter]) => [name, await of(parameter).read()] as const);
    return Object.fromEntries(await Promise.all(entries));
  };
  return {
    start,
    rows,
    out: await out.read(),
    dx: await x.grad!.read(),
    parameters: await values((parameter) => parameter),
    gradients: await values((parameter) => parameter.grad!),
    chosen: meta.chosen,
    routing: await meta.routingWeights.read(),
    chunkAttention: await meta.chunkAttention.read(),
    mass: await meta.attentionMass.read(),
    gate: (await meta.gateValues?.read()) ?? null,
    missed: (await meta.certificate?.missedMass.read()) ?? null,
    loss: await loss.item(),
  };
}

/** As contiguous() cuts. */
export function shardOf(length: number, ranks: number, rank: number): { start: number; rows: number } {
  const [base, longer] = [Math.floor(length / ranks), length % ranks];
  return { start: rank * base + Math.min(rank, longer), rows: base + (rank < longer ? 1 : 0) };
}

/** Lengths of all chunks. */
export function chunkLengths(length: number, ranks: number, perRank: number): number[] {
  return Array.from({ length: ranks }, (_, rank) => shardOf(length, ranks, rank).rows).flatMap((rows) =>
    Array.from({ length: perRank }, (_, i) => shardOf(rows, perRank, i).rows),
  );
}

/** Shards [batch,rows,width] of all ranks as one [batch,length,width]. */
export function whole(
  shards: readonly { readonly start: number; readonly rows: number; readonly values: ArrayLike<number> }[],
  { batch, length }: { batch: number; length: number },
): Float64Array {
  const width = shards[0]!.values.length / shards[0]!.rows / batch;
  const result = new Float64Array(batch * length * width);
  for (const { start, rows, values } of shards) {
    for (let b = 0; b < batch; b++) {
      for (let i = 0; i < rows * width; i++) result[(b * length + start) * width + i] = values[b * rows * width + i]!;
    }
  }
  return result;
}
