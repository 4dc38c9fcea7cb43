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
  readonly cast: GroupCastOptions & { readonly label: string };
}

/** "flex(sp) stage 2: keys". */
function stageLabel({ cast }: PassContext, stage: number, what: "keys" | "gradients"): string {
  return `${cast.label} stage ${stage + 1}: ${what}`;
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
  const { group, member, plan, cast } = pass;
  const { rank, device } = group;
  using buffers = new ChunkBuffers({ device, order: "sbhd", slotRows: plan.maxReceivedRows(rank, member) });
  const like = [kv.k, kv.v];
  const own: Chunk = { tensors: like, wire: [] };
  const sent = plan.stages > 0 ? rowMatrices(buffers.contiguous(like), buffers) : [];
  let arriving: { readonly chunk: Chunk; readonly work: Work } | undefined;
  const post = (step: number): void => {
    const stage = plan.steps[step]?.stage;
    if (stage === undefined) return;
    const chunk = buffers.slot(slotName(stage), like, plan.receivedRows(stage, rank, member));
    const options = { ...cast, label: stageLabel(pass, stage, "keys") };
    const work = group.groupCast(rowMatrices(chunk, buffers), sent, plan.castPlan(stage, member), options); // send
    arriving = { chunk, work };
  };
  const takeArrived = (): Chunk | undefined => {
    const arrived = arriving;
    arriving = undefined;
    arrived?.work.wait(); // wait
    return arrived?.chunk;
  };
  try {
    post(0);
    for (const [step, { own: part }] of plan.steps.entries()) {
      const remote = takeArrived();
      post(step + 1);
      const rows = part === undefined ? undefined : ownRows(pass, own, part, buffers);
      const { tensors } = rows && remote ? concatenateChunks(rows, remote, buffers) : (rows ?? remote)!;
      yield { step, k: tensors[0]!, v: tensors[1]! }; // compute
    }
  } finally {
    takeArrived();
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
  const own: Chunk = { tensors: [grads.dk, grads.dv], wire: [] };
  const zeroed = (chunk: Chunk): Chunk => {
    for (const sum of chunk.tensors) kernels.fill(sum, 0);
    return chunk;
  };
  // What others contribute: the owner's own sums must not be written by a kernel and a collective at once.
  const returned = plan.stages > 0 ? zeroed(buffers.empty(own.tensors, grads.dk.shape[2]!)) : undefined;
  let work: Work | undefined;
  const wait = (): void => {
    work?.wait();
    work = undefined;
  };
  try {
    // To take the next of `steps` swaps k and v: see stages.
    for (const { step, k, v } of steps) {
      const { own: part, stage } = plan.steps[step]!;
      const rows = part === undefined ? undefined : ownRows(pass, own, part, buffers);
      const remote =
        stage === undefined
          ? undefined
          : zeroed(buffers.slot(slotName(stage), own.tensors, plan.receivedRows(stage, rank, member)));
      const both = rows && remote ? zeroed(buffers.empty(own.tensors, k.shape[2]!)) : undefined;
      const { tensors } = (both ?? rows ?? remote)!;
      yield { step, k, v, dk: tensors[0]!, dv: tensors[1]! }; // compute
      if (both) splitChunks(both, { rows: rows!, remote: remote!, buffers });
      wait();
      if (!remote) continue;
      const label = stageLabel(pass, stage!, "gradients");
      const [sums, parts] = [returned!, remote].map((chunk) => rowMatrices(chunk, buffers));
      work = group.groupReduce(sums!, parts!, plan.castPlan(stage!, member), { label }); // send
    }
  } finally {
    wait();
  }
  returned?.tensors.forEach((sum, i) => kernels.binary("add", own.tensors[i]!, own.tensors[i]!, sum));
}

/** Chunks as casts move them: [S,B·H·D], of which any rows are dense. */
function rowMatrices({ wire }: Chunk, buffers: ChunkBuffers): Tensor[] {
  return wire.map((x) => {
    const [rows, ...rest] = x.shape as [number, ...number[]];
    const width = rest.reduce((size, length) => size * length, 1);
    return buffers.takeOwnership(x.view({ shape: [rows, width], strides: [width, 1] }));
  });
}

/** Chunks of even and of odd stages take turns in two buffers. */
function slotName(stage: number): "even" | "odd" {
  return stage % 2 === 0 ? "even" : "odd";
}

/** A part of the own rows, as views. */
// oxlint-disable-next-line max-params -- pass, chunk, part, and who owns the views
function ownRows({ group, member, plan }: PassContext, own: Chunk, part: 0 | 1, buffers: ChunkBuffers): Chunk {
  if (plan.parts === 1) return own;
  const { from, to } = plan.ownRows(part, group.rank, member);
  return { tensors: own.tensors.map((x) => buffers.takeOwnership(rowsOf(x, from, to))), wire: [] };
}

/** Own rows, then those that have arrived, in memory of their own. */
function concatenateChunks(rows: Chunk, remote: Chunk, buffers: ChunkBuffers): Chunk {
  const [first, rest] = [rows.tensors[0]!.shape[2]!, remote.tensors[0]!.shape[2]!];
  const both = buffers.empty(rows.tensors, first + rest);
  for (const [i, x] of both.tensors.entries()) {
    copyRows(rowsOf(x, 0, first), rows.tensors[i]!);
    copyRows(rowsOf(x, first, first + rest), remote.tensors[i]!);
  }
  return both;
}

/** The sums of both, added to those of the own rows, and copied to those of the others. */
function splitChunks(
  both: Chunk,
  { rows, remote, buffers }: { readonly rows: Chunk; readonly remote: Chunk; readonly buffers: ChunkBuffers },
): void {
  for (const [i, x] of both.tensors.entries()) {
    const [to, first] = [rows.tensors[i]!, rows.tensors[i]!.shape[2]!];
    using own = rowsOf(x, 0, first);
    if (first > 0) x.device.kernels.binary("add", to, to, own);
    using rest = rowsOf(x, first, x.shape[2]!);
    if (rest.shape[2]! > 0) x.device.kernels.copy(remote.tensors[i]!, rest);
  }
  buffers.release(both);
}

function copyRows(to: Tensor, from: Tensor): void {
  if (to.size > 0) to.device.kernels.copy(to, from);
  to.dispose();
}
