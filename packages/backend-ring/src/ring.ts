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
  /** The mesh axis along which keys rotate. Default "sp". */
  axis: option.string({ default: "sp" }),
  /**
   * What attends to the keys of each step. It may communicate along further axes. Then all ranks along those step together,
   * and its `attendBackward` must add to dk and dv what the queries of all of them contribute to the keys that this rank gave
   * it. Default: the device's own kernel.
   */
  inner: option.backend({ optional: true }),
});
/** What `ring` takes. */
export type RingOptions = OptionsOf<typeof ringOptions>;

/**
 * Ring attention: keys and values go from rank to rank along a mesh axis, and every rank folds them, as they come, into
 * the state of its own queries. Each transfer is hidden behind the step before it, what a mask leaves empty is neither
 * computed nor sent, and no rank ever holds more than two foreign chunks of keys.
 *
 * In backward a rank attends to its own keys in two parts, of 256 keys or more: the first hides the first transfer, the second
 * the last one, of gradients that return to their owners.
 *
 * In a full ring of p ranks each sends p − 1 chunks of K and V, and in backward another p − 1 of float32 dK and dV;
 * `ringTraffic` gives the bytes for any mask and placement. With `inner: ring({ axis: "gpu" })` chunks go from node to
 * node while the ranks of each node pass theirs among themselves: hierarchical attention.
 *
 * Throws, before anything is sent, an OptionError if the mesh lacks the axis or the keys are not cut along it, and a
 * ShapeError or DTypeError if the tensors are not what their layouts state, or sums are not float32 of their shapes.
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
    check: (ctx) => validate.context(ctx),

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

/** By step: the source of the block that this rank attends to; undefined where it attends to none. */
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

/** The same for the backward, in which the second part of the local keys, if they are split, is the last step. */
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

/** One step around the ring: the keys and values [B,Hkv,S,D] of one rank. */
export interface Step extends KvBlock {
  readonly step: number;
  /** The rank that owns them. */
  readonly source: number;
  /** Whether this rank attends to them. If not, none of its queries sees any: they were not sent to it, and k and v hold other keys. */
  readonly isVisible: boolean;
}

/**
 * Yields the keys and values of every rank in turn, the local ones first. The next block is in flight while the caller uses
 * the current one, which is valid until the next step.
 *
 * The transfer for a step is posted before the work of the step before it is enqueued, and waited for after it. It writes
 * to one of two buffers, the one that the previous step no longer reads: a transfer begins when all work enqueued earlier is
 * done, so it overwrites nothing in use. If the loop is left early, no transfer remains in flight.
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
  // Zeros where this rank needs none of a chunk, but ranks that its inner backend gathers from need theirs.
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

/** A step around the ring with float32 dk and dv, to which the contributions of this rank are added. */
export interface GradientStep extends Step, Pick<QkvGrads, "dk" | "dv"> {}

/** What the backward of one rank depends on: peers, and the split of the local keys. */
export interface BackwardSteps extends Partial<Pick<BackwardKeys, "numFirstRows">> {
  readonly dependencies: DependencyTable;
}

/**
 * Yields the steps with the gradients of K and V. What is added to `dk` and `dv` at a step travels while the next step
 * computes: to the right neighbour, which works on the same keys then, and from the last rank that needs them to their
 * owner, into `grads`. Gradients that a rank computes for its local keys are never sent. With `numFirstRows`, step 0 has
 * that many rows of the local keys, and one more step, after the last gradients are sent, has the rest.
 *
 * A step computes into a separate buffer, to which the sum of the neighbour is added once both are complete. Accumulating
 * directly into the sum of the neighbour would save that pass over S·D numbers (of some S²·D), but the neighbour completes it only
 * when this step could begin: no transfer would be hidden behind any compute.
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
    // To take the next of `steps` swaps the buffers of k and v (see `rotate`); those of dk and dv take turns by step.
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

/** Some rows of a step, as views that `buffers` own. */
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

/** Chunks of even and of odd steps take turns in two buffers. */
function slotName(step: number): "even" | "odd" {
  return step % 2 === 0 ? "even" : "odd";
}

function accumulate(target: Chunk, receivedChunk: Chunk | undefined): void {
  receivedChunk?.tensors.forEach((sum, i) =>
    sum.device.kernels.binary("add", target.tensors[i]!, target.tensors[i]!, sum),
  );
}
