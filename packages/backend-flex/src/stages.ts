import type { GroupCastOptions, KvBlock, ProcessGroup, QkvGrads, Tensor, Work } from "@mosaic/core";
import { type Chunk, ChunkBuffers, rowsOf } from "@mosaic/core/context-parallel";
import type { PassPlan } from "./plan.ts";

/** One pass of a call on this rank. */
export interface PassContext {
  readonly group: ProcessGroup;
  /** Which of its group of the inner backend this rank is. */
  readonly member: number;
  readonly plan: PassPlan;
  /** How rows travel, and the label of collectives in messages and traces. */
  readonly groupCastOptions: GroupCastOptions & { readonly label: string };
}

/** "flex(sp) stage 2: keys". */
function stageLabel({ groupCastOptions: passOptions }: PassContext, stage: number, kind: "keys" | "gradients"): string {
  return `${passOptions.label} stage ${stage + 1}: ${kind}`;
}

/** The keys and values [B,Hkv,S,D] of one step: own rows, rows that have arrived, or both, in this order. */
export interface Stage extends KvBlock {
  readonly step: number;
}

/**
 * Yields the keys and values of every step, the own ones first; those of the next stage are under way while you use these,
 * which are yours until the next step.
 *
 * A stage is posted before the work of the step before it is enqueued, and waited for after it. It lands in one of two buffers,
 * the one that the stage before that has done with: a transfer begins when everything enqueued earlier has run, so it
 * overwrites nothing in use. If the loop is left early, nothing remains under way.
 */
export function* stages(pass: PassContext, kv: KvBlock): Generator<Stage, void, undefined> {
  const { group, member, plan, groupCastOptions: passOptions } = pass;
  const { rank, device } = group;
  using buffers = new ChunkBuffers({ device, order: "sbhd", slotRows: plan.maxReceivedRows(rank, member) });
  const kvTensors = [kv.k, kv.v];
  const ownChunk: Chunk = { tensors: kvTensors, wire: [] };
  const sentRows = plan.numStages > 0 ? rowMatrices(buffers.contiguous(kvTensors), buffers) : [];
  let pendingGroupCast: { readonly chunk: Chunk; readonly work: Work } | undefined;
  const post = (step: number): void => {
    const stage = plan.steps[step]?.stage;
    if (stage === undefined) return;
    const chunk = buffers.slot(slotName(stage), kvTensors, plan.numReceivedRows(stage, rank, member));
    const options = { ...passOptions, label: stageLabel(pass, stage, "keys") };
    const work = group.groupCast(rowMatrices(chunk, buffers), sentRows, plan.groupCastPlan(stage, member), options); // send
    pendingGroupCast = { chunk, work };
  };
  const waitForChunk = (): Chunk | undefined => {
    const completedGroupCast = pendingGroupCast;
    pendingGroupCast = undefined;
    completedGroupCast?.work.wait(); // wait
    return completedGroupCast?.chunk;
  };
  try {
    post(0);
    for (const [step, { ownPart }] of plan.steps.entries()) {
      const remoteChunk = waitForChunk();
      post(step + 1);
      const rows = ownPart === undefined ? undefined : ownRows(pass, ownChunk, ownPart, buffers);
      const { tensors } = rows && remoteChunk ? concatenateChunks(rows, remoteChunk, buffers) : (rows ?? remoteChunk)!;
      yield { step, k: tensors[0]!, v: tensors[1]! }; // compute
    }
  } finally {
    waitForChunk();
  }
}

/** The steps with the gradients of their keys: float32 dk and dv, to add the step's contributions to. */
export interface GradientStage extends Stage, Pick<QkvGrads, "dk" | "dv"> {}

/**
 * Yields the steps with the gradients of K and V. What is added to `dk` and `dv` of the own rows stays; of rows that have
 * arrived it returns to their owners while the next step computes, and is there added up in the order of ranks, apart from what
 * the owner adds meanwhile: into `grads` at the end.
 */
export function* gradientStages(
  pass: PassContext,
  steps: Iterable<Stage>,
  grads: Pick<QkvGrads, "dk" | "dv">,
): Generator<GradientStage, void, undefined> {
  const { group, member, plan } = pass;
  const { rank, device } = group;
  const { kernels } = device;
  using buffers = new ChunkBuffers({ device, order: "sbhd", slotRows: plan.maxReceivedRows(rank, member) });
  const ownSums: Chunk = { tensors: [grads.dk, grads.dv], wire: [] };
  const fillZeros = (chunk: Chunk): Chunk => {
    for (const sum of chunk.tensors) kernels.fill(sum, 0);
    return chunk;
  };
  // What others contribute: the owner's own sums must not be written by a kernel and a collective at once.
  const returnedSums = plan.numStages > 0 ? fillZeros(buffers.empty(ownSums.tensors, grads.dk.shape[2]!)) : undefined;
  let work: Work | undefined;
  const wait = (): void => {
    work?.wait();
    work = undefined;
  };
  try {
    // To take the next of `steps` swaps k and v: see stages.
    for (const { step, k, v } of steps) {
      const { ownPart, stage } = plan.steps[step]!;
      const rows = ownPart === undefined ? undefined : ownRows(pass, ownSums, ownPart, buffers);
      const remoteSums =
        stage === undefined
          ? undefined
          : fillZeros(buffers.slot(slotName(stage), ownSums.tensors, plan.numReceivedRows(stage, rank, member)));
      const combinedSums = rows && remoteSums ? fillZeros(buffers.empty(ownSums.tensors, k.shape[2]!)) : undefined;
      const { tensors } = (combinedSums ?? rows ?? remoteSums)!;
      yield { step, k, v, dk: tensors[0]!, dv: tensors[1]! }; // compute
      if (combinedSums) splitCombinedSums(combinedSums, { rows: rows!, remoteChunk: remoteSums!, buffers });
      wait();
      if (!remoteSums) continue;
      const label = stageLabel(pass, stage!, "gradients");
      const [sums, contributions] = [returnedSums!, remoteSums].map((chunk) => rowMatrices(chunk, buffers));
      work = group.groupReduce(sums!, contributions!, plan.groupCastPlan(stage!, member), { label }); // send
    }
  } finally {
    wait();
  }
  returnedSums?.tensors.forEach((sum, i) => kernels.binary("add", ownSums.tensors[i]!, ownSums.tensors[i]!, sum));
}

/** Chunks as casts move them: [S,B·H·D], of which any rows are dense. */
function rowMatrices({ wire }: Chunk, buffers: ChunkBuffers): Tensor[] {
  return wire.map((x) => {
    const [rows, ...innerShape] = x.shape as [number, ...number[]];
    const width = innerShape.reduce((size, length) => size * length, 1);
    return buffers.takeOwnership(x.view({ shape: [rows, width], strides: [width, 1] }));
  });
}

/** Chunks of even and of odd stages take turns in two buffers. */
function slotName(stage: number): "even" | "odd" {
  return stage % 2 === 0 ? "even" : "odd";
}

/** A part of the own rows, as views. */
// oxlint-disable-next-line max-params -- pass, chunk, part, and who owns the views
function ownRows({ group, member, plan }: PassContext, ownChunk: Chunk, part: 0 | 1, buffers: ChunkBuffers): Chunk {
  if (plan.numOwnParts === 1) return ownChunk;
  const { from, to } = plan.ownRowRange(part, group.rank, member);
  return { tensors: ownChunk.tensors.map((x) => buffers.takeOwnership(rowsOf(x, from, to))), wire: [] };
}

/** Own rows, then those that have arrived, in memory of their own. */
function concatenateChunks(rows: Chunk, remoteChunk: Chunk, buffers: ChunkBuffers): Chunk {
  const [numOwnRows, numRemoteRows] = [rows.tensors[0]!.shape[2]!, remoteChunk.tensors[0]!.shape[2]!];
  const combinedChunk = buffers.empty(rows.tensors, numOwnRows + numRemoteRows);
  for (const [i, x] of combinedChunk.tensors.entries()) {
    copyRows(rowsOf(x, 0, numOwnRows), rows.tensors[i]!);
    copyRows(rowsOf(x, numOwnRows, numOwnRows + numRemoteRows), remoteChunk.tensors[i]!);
  }
  return combinedChunk;
}

/** The sums of both, added to those of the own rows, and copied to those of the others. */
function splitCombinedSums(
  combinedSums: Chunk,
  { rows, remoteChunk, buffers }: { readonly rows: Chunk; readonly remoteChunk: Chunk; readonly buffers: ChunkBuffers },
): void {
  for (const [i, x] of combinedSums.tensors.entries()) {
    const [target, numOwnRows] = [rows.tensors[i]!, rows.tensors[i]!.shape[2]!];
    using ownView = rowsOf(x, 0, numOwnRows);
    if (numOwnRows > 0) x.device.kernels.binary("add", target, target, ownView);
    using remoteView = rowsOf(x, numOwnRows, x.shape[2]!);
    if (remoteView.shape[2]! > 0) x.device.kernels.copy(remoteChunk.tensors[i]!, remoteView);
  }
  buffers.release(combinedSums);
}

function copyRows(target: Tensor, source: Tensor): void {
  if (target.size > 0) target.device.kernels.copy(target, source);
  target.dispose();
}
