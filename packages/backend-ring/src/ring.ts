import {
  type AttentionBackend,
  type Coordinate,
  describeBackend,
  blockwise,
  type KvBlock,
  local,
  type ProcessGroup,
  type QkvGrads,
  type Transfer,
  type Work,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import {
  type Chunk,
  ChunkBuffers,
  type DependencyTable,
  dependencyTableCache,
  modulo,
  rowsOf,
  validator,
} from "@mosaic/core/context-parallel";
import { type GradientTransfers, gradientTransfers, isSent, kvTransfers, maxChunkRows } from "./exchange.ts";
import { type BackwardKeys, createBackwardKeysCache } from "./local-kv-split.ts";

export const ringOptions = defineOptions("ring", {
  /** The mesh axis along which keys and values rotate. Default "sp". */
  axis: option.string({ default: "sp" }),
  /**
   * The backend that attends to the keys of each step. It may communicate along other axes. In that case all ranks
   * along those axes run each step together, and its `attendBackward` must add to dk and dv the contributions of the
   * queries of all of them to the keys that this rank passed to it. Default: the device's own kernel.
   */
  inner: option.backend({ optional: true }),
});
/** Options of `ring`. */
export type RingOptions = OptionsOf<typeof ringOptions>;

/**
 * Creates a backend for ring attention: keys and values are passed from rank to rank along a mesh axis, and every rank
 * folds each received chunk into the state of its own queries. Each transfer overlaps with the computation of the
 * previous step. Chunks without visible pairs are neither computed nor sent. No rank holds more than two chunks of
 * other ranks at a time.
 *
 * In backward, a rank attends to its own keys in two parts of at least 256 keys. The first part overlaps with the first
 * transfer, and the second part with the last one, which returns gradients to their owners.
 *
 * In a full ring of p ranks, each rank sends p − 1 chunks of K and V, and in backward also p − 1 chunks of float32 dK
 * and dV. `ringTraffic` computes the bytes for any mask and placement. With `inner: ring({ axis: "gpu" })`, chunks are
 * passed from node to node while the ranks of each node pass chunks among themselves (hierarchical attention).
 *
 * Throws an OptionError if the mesh lacks the axis or the keys are not sharded along it, and a ShapeError or DTypeError
 * if the tensors do not match their layouts or the sums are not float32 of matching shapes. All are checked before
 * anything is sent.
 *
 * Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * ring().axes; // => ["sp"]
 * ring({ axis: "node", inner: ring({ axis: "gpu" }) }).axes; // => ["node", "gpu"]
 * ```
 */
export function ring(options?: RingOptions): AttentionBackend {
  const { axis, inner = local() } = ringOptions.parse(options);
  const validate = validator({ name: "ring", axis, inner });
  const getDependencies = dependencyTableCache({ axis, inner });
  const getBackwardKeys = createBackwardKeysCache(axis, inner);
  return {
    name: "ring",
    description: inner.name === "local" ? `ring(${axis})` : `ring(${axis}, ${describeBackend(inner)})`,
    axes: [axis, ...inner.axes],
    check: (ctx, layouts) => validate.context(ctx, layouts),

    attend(ctx, call, state, kv) {
      validate.attend(ctx, call, state, kv);
      const group = ctx.mesh.group(axis);
      const dependencies = getDependencies(ctx, call, kv.from);
      const blocks = visibleCoordinates(group, dependencies, kv.from);
      using blockwiseAttention = blockwise(inner, blocks.filter(isVisible));
      for (const { step, isVisible: isStepVisible, k, v } of rotate(group, kv, dependencies))
        if (isStepVisible) blockwiseAttention.attend(ctx, call, state, { k, v, from: blocks[step]! });
    },

    attendBackward(ctx, call, grads, kv) {
      validate.attendBackward(ctx, call, grads, kv);
      const group = ctx.mesh.group(axis);
      const dependencies = getDependencies(ctx, call, kv.from);
      const keys = getBackwardKeys(call, kv.from, dependencies);
      const blocks = backwardCoordinates(group, dependencies, { from: kv.from, keys });
      const stagedCall = { ...call, keys: keys.layout };
      const steps = rotate(group, kv, dependencies);
      using blockwiseAttention = blockwise(inner, blocks.filter(isVisible));
      for (const { step, isVisible: isStepVisible, k, v, dk, dv } of rotateGradients(group, steps, grads, {
        dependencies,
        ...keys,
      }))
        if (isStepVisible)
          blockwiseAttention.attendBackward(ctx, stagedCall, { dq: grads.dq, dk, dv }, { k, v, from: blocks[step]! });
    },
  };
}

/** Returns, for each step, the coordinate of the block that this rank attends to; undefined if it attends to none. */
function visibleCoordinates(
  { rank, size }: ProcessGroup,
  { axis, needsCompute }: DependencyTable,
  from: Coordinate,
): (Coordinate | undefined)[] {
  const blocks: (Coordinate | undefined)[] = [];
  for (let step = 0; step < size; step++) {
    const source = modulo(rank - step, size);
    blocks.push(needsCompute(rank, source) ? { ...from, [axis]: source } : undefined);
  }
  return blocks;
}

/** As `visibleCoordinates`, for backward: if the local keys are split, their second part is an additional last step. */
function backwardCoordinates(
  group: ProcessGroup,
  dependencies: DependencyTable,
  { from, keys }: { readonly from: Coordinate; readonly keys: BackwardKeys },
): (Coordinate | undefined)[] {
  const blocks = visibleCoordinates(group, dependencies, from);
  if (keys.numFirstRows === undefined) return blocks;
  const { axis, size } = dependencies;
  return [{ ...from, [axis]: size }, ...blocks.slice(1), { ...from, [axis]: size + 1 }];
}

function isVisible(block: Coordinate | undefined): block is Coordinate {
  return block !== undefined;
}

/** One step of the ring: the keys and values [B,Hkv,S,D] of one rank. */
export interface Step extends KvBlock {
  readonly step: number;
  /** The rank that owns the keys and values. */
  readonly source: number;
  /**
   * Whether this rank attends to the keys of `source`. If false, no local query attends to any of them, they were not
   * sent to this rank, and `k` and `v` hold other keys.
   */
  readonly isVisible: boolean;
}

/**
 * Yields the keys and values of every rank in turn, starting with the local ones. The next block is in flight while the
 * caller uses the current one. A block is valid until the next step.
 *
 * The transfer for step t + 1 is posted before the work of step t is enqueued, and waited for after it. It writes to
 * the one of two buffers that step t − 1 used. A transfer starts when all work enqueued before it has completed, so it
 * never overwrites data in use. If the caller leaves the loop early, the pending transfer is waited for.
 */
export function* rotate(
  group: ProcessGroup,
  kv: KvBlock,
  dependencies: DependencyTable,
): Generator<Step, void, undefined> {
  const { rank, size, device } = group;
  const { needsCompute, needsKv, keyRows } = dependencies;
  const label = `ring(${dependencies.axis})`;
  using buffers = new ChunkBuffers({ device, slotRows: maxChunkRows(dependencies, rank) });
  const kvTensors = [kv.k, kv.v];
  const ownChunk: Chunk = isSent(dependencies, rank) ? buffers.contiguous(kvTensors) : { tensors: kvTensors, wire: [] };
  // Zeros if this rank does not need the chunk, but ranks with which its inner backend communicates need their parts of
  // it.
  const getStepChunk = (source: number, step: number): Chunk => {
    if (needsKv(rank, source)) return buffers.slot(slotName(step), kvTensors, keyRows(source));
    return needsCompute(rank, source) ? buffers.zeros(kvTensors, keyRows(source)) : ownChunk;
  };
  let currentChunk = ownChunk;
  let work: Work | undefined;
  try {
    for (let step = 0; step < size; step++) {
      const source = modulo(rank - step, size);
      const isLastStep = step === size - 1;
      const nextChunk = isLastStep ? ownChunk : getStepChunk(modulo(source - 1, size), step + 1);
      if (!isLastStep)
        work = postTransfers(
          group,
          kvTransfers(dependencies, rank, step + 1, { own: ownChunk, current: currentChunk, next: nextChunk }),
          label,
        ); // send
      const { tensors } = currentChunk;
      yield { step, source, isVisible: needsCompute(rank, source), k: tensors[0]!, v: tensors[1]! }; // compute
      work?.wait(); // wait
      work = undefined;
      currentChunk = nextChunk; // the two buffers swap
    }
  } finally {
    work?.wait();
  }
}

/** A step of the ring with float32 dk and dv, to which the caller adds the contributions of this rank. */
export interface GradientStep extends Step, Pick<QkvGrads, "dk" | "dv"> {}

/** Inputs of the backward of one rank: its peers, and the split of its local keys. */
export interface BackwardSteps extends Partial<Pick<BackwardKeys, "numFirstRows">> {
  readonly dependencies: DependencyTable;
}

/**
 * Yields the steps with the gradients of K and V. The sums in `dk` and `dv` of a step are sent while the next step
 * computes: to the right neighbor, which then computes on the same keys, or, from the last rank that needs the keys,
 * to their owner, which adds them to `grads`. Gradients that a rank computes for its local keys are never sent. With
 * `numFirstRows`, step 0 covers that many local keys, and an additional step, after the last gradients are sent, covers
 * the rest.
 *
 * A step computes into a separate buffer, to which the sum of the neighbor is added once both are complete.
 * Accumulating directly into the neighbor's sum would save this pass over S·D numbers (of about S²·D), but the sum
 * arrives only after the neighbor's step, so the transfer could not overlap with any computation.
 */
export function* rotateGradients(
  group: ProcessGroup,
  steps: Iterable<Step>,
  grads: Pick<QkvGrads, "dk" | "dv">,
  { dependencies, numFirstRows }: BackwardSteps,
): Generator<GradientStep, void, undefined> {
  const { rank, size, device } = group;
  const label = `ring(${dependencies.axis})`;
  using buffers = new ChunkBuffers({ device, slotRows: maxChunkRows(dependencies, rank) });
  const ownSums: Chunk = { tensors: [grads.dk, grads.dv], wire: [] };
  const createZeroSums = (source: number, step: number): Chunk => {
    const sums = buffers.slot(slotName(step), ownSums.tensors, dependencies.keyRows(source));
    for (const sum of sums.tensors) device.kernels.fill(sum, 0);
    return sums;
  };
  let remainingStep: GradientStep | undefined;
  let pendingTransfers: GradientTransfers | undefined;
  let work: Work | undefined;
  try {
    // Advancing `steps` swaps the buffers of k and v (see `rotate`). The buffers of dk and dv alternate by step.
    for (const currentStep of steps) {
      const { step, source, isVisible: isStepVisible } = currentStep;
      const sums = source !== rank && isStepVisible ? createZeroSums(source, step) : ownSums;
      const wholeStep = { ...currentStep, dk: sums.tensors[0]!, dv: sums.tensors[1]! };
      if (step === 0 && numFirstRows !== undefined) {
        remainingStep = {
          ...sliceStepRows(wholeStep, { from: numFirstRows, to: wholeStep.k.shape[2]! }, buffers),
          step: size,
        };
        yield sliceStepRows(wholeStep, { from: 0, to: numFirstRows }, buffers); // compute
      } else yield wholeStep; // compute
      work?.wait(); // wait
      work = undefined;
      accumulate(sums, pendingTransfers?.nextStepSums);
      accumulate(ownSums, pendingTransfers?.ownerSums);
      pendingTransfers = gradientTransfers(dependencies, rank, step, { own: ownSums, current: sums, buffers });
      work = postTransfers(group, pendingTransfers.transfers, label); // send
      if (step === size - 1 && remainingStep !== undefined) yield remainingStep; // compute
    }
  } finally {
    work?.wait();
  }
  accumulate(ownSums, pendingTransfers?.ownerSums);
}

/** Returns the rows [from, to) of a step, as views that `buffers` owns. */
function sliceStepRows(
  step: GradientStep,
  { from, to }: { readonly from: number; readonly to: number },
  buffers: ChunkBuffers,
): GradientStep {
  const [k, v, dk, dv] = [step.k, step.v, step.dk, step.dv].map((x) => buffers.takeOwnership(rowsOf(x, from, to)));
  return { ...step, k: k!, v: v!, dk: dk!, dv: dv! };
}

function postTransfers(group: ProcessGroup, transfers: readonly Transfer[], label: string): Work | undefined {
  return transfers.length > 0 ? group.sendRecv(transfers, { label }) : undefined;
}

/** Returns the buffer of a step: even and odd steps alternate between two buffers. */
function slotName(step: number): "even" | "odd" {
  return step % 2 === 0 ? "even" : "odd";
}

function accumulate(target: Chunk, receivedChunk: Chunk | undefined): void {
  receivedChunk?.tensors.forEach((sum, i) =>
    sum.device.kernels.binary("add", target.tensors[i]!, target.tensors[i]!, sum),
  );
}
