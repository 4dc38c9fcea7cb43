import {
  type Context,
  type DType,
  layoutOf,
  type Mask,
  masks,
  MultiAxisAttention,
  type Placement,
  reduceGradients,
} from "@mosaic/core";
import { listPositions, takeRows } from "../backend/shard.ts";
import { placements } from "../backend/trials.ts";
import type { MaskMod } from "../oracle/attention.ts";
import { normals } from "../oracle/numbers.ts";
import type { ModuleParameters, ModuleSizes } from "./oracle.ts";
import type { Arrangement } from "../suite-options.ts";

/** A MultiAxisAttention, and its input sequences. */
export interface ModuleTrial {
  readonly name: string;
  readonly sizes: ModuleSizes;
  readonly mask: Mask;
  readonly maskMod: MaskMod;
  readonly placement: Placement;
  readonly dtype: DType;
  readonly useCheckpoint: boolean;
}

/** Results of one step on one rank: its shard of out and dx, and every parameter's value and reduced gradient. */
export interface ModuleResult {
  readonly out: Float32Array;
  readonly dx: Float32Array;
  readonly parameters: ModuleParameters;
  readonly gradients: ModuleParameters;
}

/** Returns x or dOut of all sequences, concatenated. */
export function makeInput({ sizes, dtype }: ModuleTrial, sequences: number, seed: number): Float64Array {
  return normals(sequences * sizes.batch * sizes.length * sizes.embed, seed, dtype);
}

/** Runs the forward and backward of one training step on this rank. Every rank must call it. */
export async function runStep(
  ctx: Context,
  trial: ModuleTrial,
  { arrangement, sequence, sequences }: SequenceAssignment,
): Promise<ModuleResult> {
  const { sizes, mask, placement, dtype, useCheckpoint } = trial;
  const { length, embed, numHeads, numKvHeads, headDim } = sizes;
  using attention = new MultiAxisAttention(ctx, {
    embedDim: embed,
    numHeads,
    numKvHeads,
    headDim,
    attentionAxis: -2,
    backend: arrangement.backend,
    sequenceLength: length,
    mask,
    placement,
    dtype,
    useCheckpoint,
  });
  const positions = rankPositions(ctx, trial, arrangement);
  const createShard = (values: Float64Array) => {
    const valuesPerSequence = values.length / sequences;
    const tensor = ctx.device.empty([sizes.batch, positions.length, embed], dtype);
    const sequenceValues = values.subarray(sequence * valuesPerSequence, (sequence + 1) * valuesPerSequence);
    ctx.device.write(tensor, takeRows(sequenceValues, positions, { rows: length, width: embed }));
    return tensor;
  };
  using x = createShard(makeInput(trial, sequences, 1));
  using dOut = createShard(makeInput(trial, sequences, 2));
  x.requiresGrad = true;
  using out = attention.forward(x);
  out.backward(dOut);
  reduceGradients(ctx, attention);
  using dx = x.grad!;
  const namedParameters = attention.namedParameters();
  const values = await Promise.all(
    namedParameters.map(async ([name, each]) => [name, Float64Array.from(await each.read())]),
  );
  const grads = await Promise.all(
    namedParameters.map(async ([name, each]) => [name, Float64Array.from(await each.grad!.read())]),
  );
  return {
    out: await out.read(),
    dx: await dx.read(),
    parameters: Object.fromEntries(values) as ModuleParameters,
    gradients: Object.fromEntries(grads) as ModuleParameters,
  };
}

/** Index of the sequence that a rank works on, and the number of sequences. */
export interface SequenceAssignment {
  readonly arrangement: Arrangement;
  readonly sequence: number;
  readonly sequences: number;
}

/** Returns the positions of this rank's rows. */
export function rankPositions(ctx: Context, { sizes, placement }: ModuleTrial, { mesh, axes }: Arrangement): number[] {
  return listPositions(layoutOf({ mesh, axes, placement, length: sizes.length }).spans(ctx.mesh.coordinate));
}

/** Returns trials of several masks, placements and dtypes, with grouped heads and unequal shards. */
export function moduleTrials(): ModuleTrial[] {
  const [contiguous, zigzag, striped, ragged] = placements();
  const sizes = { batch: 2, length: 37, embed: 24, numHeads: 4, numKvHeads: 4, headDim: 6 };
  const groupedSizes = { ...sizes, numKvHeads: 2, headDim: 8 };
  const baseTrial = { sizes, dtype: "float32", useCheckpoint: false } as const;
  const getDocument = (position: number) => (position < 11 ? 0 : 1);
  return [
    { ...baseTrial, name: "full, contiguous", mask: masks.full(), maskMod: () => true, placement: contiguous! },
    { ...baseTrial, name: "causal, zigzag", mask: masks.causal(), maskMod: (q, k) => k <= q, placement: zigzag! },
    {
      ...baseTrial,
      name: "sliding window, striped, grouped-query, checkpointed",
      sizes: groupedSizes,
      useCheckpoint: true,
      mask: masks.slidingWindow(9),
      maskMod: (q, k) => k <= q && k > q - 9,
      placement: striped!,
    },
    {
      ...baseTrial,
      name: "documents, ragged, bfloat16",
      dtype: "bfloat16",
      mask: masks.documents([11, 26]),
      maskMod: (q, k) => getDocument(q) === getDocument(k),
      placement: ragged!,
    },
  ];
}
