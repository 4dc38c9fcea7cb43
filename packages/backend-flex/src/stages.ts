import type { GroupCastOptions, KvBlock, ProcessGroup, QkvGrads, Tensor, Work } from "@mosaic/core";
import { type Chunk, ChunkBuffers, rowsOf } from "@mosaic/core/context-parallel";
import type { PassPlan } from "./plan.ts";
import { NUM_BUFFERS } from "./stage-time.ts";

/** One pass of a call on this rank. */
export interface PassContext {
  readonly group: ProcessGroup;
  /** The index of this rank among the members of its group of the inner backend. */
  readonly member: number;
  readonly plan: PassPlan;
  /** Options of group-casts, and the label of collectives in messages and traces. */
  readonly groupCastOptions: GroupCastOptions & { readonly label: string };
}

/** Formats the label of a stage's collective, such as "flex(sp) stage 2: keys". */
function stageLabel({ groupCastOptions: passOptions }: PassContext, stage: number, kind: "keys" | "gradients"): string {
  return `${passOptions.label} stage ${stage + 1}: ${kind}`;
}

/** The keys and values [B,Hkv,S,D] of one step: local rows, received rows, or both in this order. */
export interface Stage extends KvBlock {
  readonly step: number;
}

/**
 * Yields the keys and values of every step, starting with the local ones. The following stages are in flight while the
 * caller uses the current step, whose tensors are valid until the next step.
 *
 * Stages alternate between two buffers, and a stage is posted as soon as its buffer is free: the first two before the
 * first step, each other one after the work of the last but one stage before it has been enqueued. A transfer starts
 * when all work enqueued before it has completed, so it never overwrites data in use. If the caller leaves the loop
 * early, the pending transfers are waited for.
 */
export function* stages(pass: PassContext, kv: KvBlock): Generator<Stage, void, undefined> {
  const { group, member, plan, groupCastOptions: passOptions } = pass;
  const { rank, device } = group;
  using buffers = new ChunkBuffers({ device, order: "sbhd", slotRows: plan.maxReceivedRows(rank, member) });
  const kvTensors = [kv.k, kv.v];
  const ownChunk: Chunk = { tensors: kvTensors, wire: [] };
  const sentRows = plan.numStages > 0 ? rowMatrices(buffers.contiguous(kvTensors), buffers) : [];
  const pendingGroupCasts: { readonly chunk: Chunk; readonly work: Work }[] = [];
  const post = (stage: number): void => {
    const chunk = buffers.slot(slotName(stage), kvTensors, plan.numReceivedRows(stage, rank, member));
    const options = { ...passOptions, label: stageLabel(pass, stage, "keys") };
    const work = group.groupCast(rowMatrices(chunk, buffers), sentRows, plan.groupCastPlan(stage, member), options); // send
    pendingGroupCasts.push({ chunk, work });
  };
  const waitForChunk = (): Chunk | undefined => {
    const completedGroupCast = pendingGroupCasts.shift();
    completedGroupCast?.work.wait(); // wait
    return completedGroupCast?.chunk;
  };
  let [numPosted, numAttended] = [0, 0];
  try {
    for (const [step, { ownPart, stage }] of plan.steps.entries()) {
      for (; numPosted < Math.min(plan.numStages, numAttended + NUM_BUFFERS); numPosted++) post(numPosted);
      const remoteChunk = stage === undefined ? undefined : waitForChunk();
      const rows = ownPart === undefined ? undefined : ownRows(pass, ownChunk, ownPart, buffers);
      const { tensors } = rows && remoteChunk ? concatenateChunks(rows, remoteChunk, buffers) : (rows ?? remoteChunk)!;
      yield { step, k: tensors[0]!, v: tensors[1]! }; // compute
      if (stage !== undefined) numAttended++;
    }
  } finally {
    while (pendingGroupCasts.length > 0) waitForChunk();
  }
}

/** A step with float32 dk and dv, to which the caller adds the contributions of the step. */
export interface GradientStage extends Stage, Pick<QkvGrads, "dk" | "dv"> {}

/**
 * Yields the steps with the gradients of K and V. Gradients of local rows are accumulated in place. Gradients of
 * received rows are returned to their owners while the next step computes. The owner adds the returned gradients in
 * rank order into a separate buffer, and adds this buffer to `grads` at the end.
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
  // Contributions of other ranks. A separate buffer is required because kernels and collectives must not write to it
  // concurrently.
  const returnedSums = plan.numStages > 0 ? fillZeros(buffers.empty(ownSums.tensors, grads.dk.shape[2]!)) : undefined;
  let work: Work | undefined;
  const wait = (): void => {
    work?.wait();
    work = undefined;
  };
  try {
    // Advancing `steps` swaps the buffers of k and v (see `stages`).
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

/** Returns the tensors of a chunk as group-casts move them: [S,B·H·D], of which any range of rows is contiguous. */
function rowMatrices({ wire }: Chunk, buffers: ChunkBuffers): Tensor[] {
  return wire.map((x) => {
    const [rows, ...innerShape] = x.shape as [number, ...number[]];
    const width = innerShape.reduce((size, length) => size * length, 1);
    return buffers.takeOwnership(x.view({ shape: [rows, width], strides: [width, 1] }));
  });
}

/** Returns the buffer of a stage. */
function slotName(stage: number): "even" | "odd" {
  return stage % 2 === 0 ? "even" : "odd";
}

/** Returns a part of the local rows, as views. */
// oxlint-disable-next-line max-params -- pass, chunk, part, and who owns the views
function ownRows({ group, member, plan }: PassContext, ownChunk: Chunk, part: 0 | 1, buffers: ChunkBuffers): Chunk {
  if (plan.numOwnParts === 1) return ownChunk;
  const { from, to } = plan.ownRowRange(part, group.rank, member);
  return { tensors: ownChunk.tensors.map((x) => buffers.takeOwnership(rowsOf(x, from, to))), wire: [] };
}

/** Copies local rows and then received rows into a new chunk. */
function concatenateChunks(rows: Chunk, remoteChunk: Chunk, buffers: ChunkBuffers): Chunk {
  const [numOwnRows, numRemoteRows] = [rows.tensors[0]!.shape[2]!, remoteChunk.tensors[0]!.shape[2]!];
  const combinedChunk = buffers.empty(rows.tensors, numOwnRows + numRemoteRows);
  for (const [i, x] of combinedChunk.tensors.entries()) {
    copyRows(rowsOf(x, 0, numOwnRows), rows.tensors[i]!);
    copyRows(rowsOf(x, numOwnRows, numOwnRows + numRemoteRows), remoteChunk.tensors[i]!);
  }
  return combinedChunk;
}

/**
 * Splits sums over local and received rows: adds the former to the local sums, and copies the latter to the remote
 * chunk.
 */
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
