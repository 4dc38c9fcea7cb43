import { AutogradError } from "../errors.ts";
import { releaseOnError, runUntracked } from "../tracking.ts";
import { formatShape, sameShape } from "../shape.ts";
import { dtypeBytes, type Storage } from "../storage.ts";
import type { Tensor } from "../tensor.ts";
import { type Edge, type GradientPart, type GradNode, type TensorMetadata, noGrad } from "./node.ts";
import { UnwrittenRanges } from "./unwritten-ranges.ts";

/** The queue of the backward that is running; the innermost one if a checkpoint runs another one. */
let activeQueue: GradientQueue | undefined;

/**
 * Returns whether a backward is running. Operations that are recorded meanwhile, in `enableGrad`, recompute a part of
 * the forward, as in `checkpoint`.
 *
 * @example
 * ```ts
 * import { checkpoint, isBackwardRunning, ones } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = ones(device, [2]);
 * x.requiresGrad = true;
 * const calls: boolean[] = [];
 * const body = (input: typeof x) => {
 *   calls.push(isBackwardRunning());
 *   return input.square().sum();
 * };
 * using loss = checkpoint(body, x);
 * loss.backward(); // runs the body again
 * calls; // => [false, true]
 * ```
 */
export function isBackwardRunning(): boolean {
  return activeQueue !== undefined;
}

/**
 * Runs the tape backward from `root`. Operations run in reverse order of creation. Each runs once, after all gradients
 * of its output have been added, and its saved tensors are freed immediately. There is no recursion, so the length of a
 * tape is not limited.
 *
 * As in PyTorch, gradients are added to an existing `grad` of a leaf in place. It is then an error to use a tensor that
 * was saved for another backward and shares its memory.
 */
export function backward(root: Tensor, gradient?: Tensor): void {
  root.assertNotDisposed("backward");
  const edge = root.gradientEdge();
  if (edge === null) {
    throw new AutogradError({
      where: "backward",
      expected: "a tensor that requires grad",
      received: `a tensor ${formatShape(root.shape)} without gradient history`,
      remedy: "set requiresGrad on a leaf tensor first, and run the forward outside noGrad",
    });
  }
  const seed = resolveRootGradient(root, gradient);
  runUntracked(() => noGrad(() => runBackward(edge, seed, gradient?.storage)));
}

function resolveRootGradient(root: Tensor, gradient: Tensor | undefined): Tensor {
  if (gradient) {
    gradient.assertNotDisposed("backward");
    checkGradient("backward", gradient, root);
    return gradient.detach();
  }
  if (root.size !== 1) {
    throw new AutogradError({
      where: "backward",
      expected: "a scalar, or a gradient argument",
      received: formatShape(root.shape),
      remedy: "reduce the tensor to a scalar loss, or pass its gradient",
    });
  }
  const ones = root.device.empty(root.shape, root.dtype);
  root.device.kernels.fill(ones, 1);
  return ones;
}

function checkGradient(where: string, gradient: Tensor, metadata: TensorMetadata): void {
  if (sameShape(gradient.shape, metadata.shape) && gradient.dtype === metadata.dtype) return;
  throw new AutogradError({
    where,
    expected: `a gradient of shape ${formatShape(metadata.shape)} ${metadata.dtype}`,
    received: `${formatShape(gradient.shape)} ${gradient.dtype}`,
  });
}

function runBackward(rootEdge: Exclude<Edge, null>, seed: Tensor, seedStorage: Storage | undefined): void {
  const outerQueue = activeQueue;
  const queue = new GradientQueue(outerQueue, seedStorage);
  activeQueue = queue;
  try {
    accumulate(rootEdge, seed, queue);
    for (let nodeGradient = queue.pop(); nodeGradient !== undefined; nodeGradient = queue.pop()) {
      const { node, gradient } = nodeGradient;
      if (writePart(node, gradient, queue)) continue;
      accumulateAll(node, runNode(node, gradient), queue);
    }
    queue.addDeferredGradients();
  } finally {
    activeQueue = outerQueue;
    queue.dispose();
  }
}

/**
 * Writes the gradient of a node's input to its part of the gradient that the input has already accumulated, or of a new
 * one. Returns false if that is not possible, otherwise frees the node and `dOutput`.
 */
function writePart(node: GradNode, dOutput: Tensor, queue: GradientQueue): boolean {
  const [edge] = node.edges;
  const part = node.definition?.part;
  if (!part || !edge || !("node" in edge)) return false;
  let isDone = true;
  try {
    const target = queue.prepareForPart(edge.node, part, dOutput);
    if (target) part.write(dOutput, target.gradient, target.isAdded);
    else isDone = false;
    return isDone;
  } finally {
    if (isDone) {
      node.free();
      dOutput.dispose();
    }
  }
}

/** Returns the gradients of a node's inputs, each as a separate handle. Frees the node and its output's gradient. */
function runNode(node: GradNode, dOutput: Tensor): readonly (Tensor | null)[] {
  const { definition } = node;
  if (!definition) {
    dOutput.dispose();
    throw new AutogradError({
      where: `backward of ${node.name}`,
      expected: "saved tensors that have not been freed",
      received: "a second backward through the same graph",
      remedy: "run the forward again, or add the losses and call backward once",
    });
  }
  try {
    const needsInputGrad = node.edges.map((edge) => edge !== null);
    const seenGradients = new Set([dOutput]);
    const inputGradients = definition.backward(dOutput, needsInputGrad).map((gradient) => {
      if (gradient === null) return null;
      if (seenGradients.has(gradient)) return gradient.detach();
      seenGradients.add(gradient);
      return gradient;
    });
    return checkGradients(node, inputGradients);
  } finally {
    node.free();
    dOutput.dispose();
  }
}

function checkGradients(node: GradNode, gradients: readonly (Tensor | null)[]): readonly (Tensor | null)[] {
  try {
    for (const [i, gradient] of gradients.entries()) {
      const edge = node.edges[i] ?? null;
      if (gradient === null || edge === null) continue;
      checkGradient(`backward of ${node.name}, input ${i}`, gradient, "leaf" in edge ? edge.leaf : edge.node.output);
    }
  } catch (error) {
    for (const gradient of gradients) gradient?.dispose();
    throw error;
  }
  return gradients;
}

/** Accumulates the gradients of a node's inputs one after the other. If one fails, disposes the remaining ones. */
function accumulateAll(node: GradNode, gradients: readonly (Tensor | null)[], queue: GradientQueue): void {
  let nextGradientIndex = 0;
  try {
    for (const gradient of gradients) {
      const edge = node.edges[nextGradientIndex++] ?? null;
      if (gradient === null) continue;
      if (edge === null) gradient.dispose();
      else accumulate(edge, gradient, queue);
    }
  } catch (error) {
    for (const gradient of gradients.slice(nextGradientIndex)) gradient?.dispose();
    throw error;
  }
}

/** Accumulates a gradient along an edge. Takes ownership of the gradient even if it throws. */
function accumulate(edge: Exclude<Edge, null>, gradient: Tensor, queue: GradientQueue): void {
  try {
    if ("node" in edge) queue.add(edge.node, gradient);
    else if (edge.leaf.grad && queue.sharesSeed(edge.leaf.grad)) queue.defer(edge.leaf, gradient);
    else accumulateGrad(edge.leaf, gradient);
  } catch (error) {
    gradient.dispose();
    throw error;
  }
}

/**
 * Accumulates into a leaf's `grad`, in place if it exists, so that the tensor remains the leaf's gradient and views of it
 * show the sum. A new `grad` is contiguous and shares memory with no other tensor, so that an optimizer may write to it.
 */
function accumulateGrad(leaf: Tensor, gradient: Tensor): void {
  const { grad } = leaf;
  divideReducedGradient(leaf);
  if (leaf.isDisposed) gradient.dispose();
  else if (grad && !grad.isDisposed && hasDistinctElements(grad)) {
    grad.device.kernels.binary("add", grad, grad, gradient);
    gradient.dispose();
  } else if (grad && !grad.isDisposed) leaf.grad = addGradients(grad, gradient);
  else if (isSoleOwner(gradient) && !isPartOfStorage(gradient)) leaf.grad = gradient;
  else leaf.grad = replaceByCopy(gradient);
  if (leaf.replication) leaf.replication.hasLocalGrad = true;
}

/**
 * Divides a gradient that is already reduced by the number of ranks over which the next `reduceGradients` sums it, so
 * that it counts once in that sum, together with the parts that backwards add meanwhile. A gradient that is not reduced
 * does not change.
 */
export function divideReducedGradient({ grad, replication }: Tensor): void {
  if (!replication?.isGradReduced) return;
  replication.isGradReduced = false;
  const { numSummedRanks = 1 } = replication;
  if (numSummedRanks === 1 || !grad || grad.isDisposed || grad.size === 0) return;
  grad.device.kernels.scalar("div", grad, grad, numSummedRanks);
}

/** Returns a contiguous copy. Disposes the gradient unless this throws. */
function replaceByCopy(gradient: Tensor): Tensor {
  const copy = releaseOnError(() => {
    const out = gradient.device.empty(gradient.shape, gradient.dtype);
    gradient.device.kernels.copy(out, gradient);
    return out;
  });
  gradient.dispose();
  return copy;
}

/** Returns whether no two elements of a view share memory, as those of an expanded axis do, so that it can be written. */
function hasDistinctElements({ shape, strides, isContiguous }: Tensor): boolean {
  if (isContiguous) return true;
  const axes = shape.map((_, axis) => axis).filter((axis) => shape[axis]! > 1);
  let extent = 1;
  for (const axis of axes.toSorted((a, b) => Math.abs(strides[a]!) - Math.abs(strides[b]!))) {
    const stride = Math.abs(strides[axis]!);
    if (stride < extent) return false;
    extent += stride * (shape[axis]! - 1);
  }
  return true;
}

/** Returns whether a gradient is contiguous and shares memory with no other tensor, so that it may be written to. */
function isSoleOwner(gradient: Tensor): boolean {
  return gradient.storage.references === 1 && gradient.isContiguous;
}

/** Unused bytes of a storage that a leaf may keep alive with a small gradient. */
const MAX_UNUSED_BYTES = 4096;

/**
 * Returns whether a gradient uses less than about half of its storage. A leaf would then keep the unused memory alive
 * as long as its gradient.
 */
function isPartOfStorage({ storage, size, dtype }: Tensor): boolean {
  return storage.byteLength > 2 * size * dtypeBytes[dtype] + MAX_UNUSED_BYTES;
}

/**
 * Returns a + b in the dtype of a, in place if one of them is its memory's sole owner. The gradient of a 16-bit leaf may
 * be float32. Takes ownership of both.
 */
function addGradients(a: Tensor, b: Tensor): Tensor {
  const [target, addend] = isSoleOwner(a) || !isSoleOwner(b) || a.dtype !== b.dtype ? [a, b] : [b, a];
  const out = isSoleOwner(target) ? target : target.device.empty(target.shape, target.dtype);
  out.device.kernels.binary("add", out, target, addend);
  if (out !== target) target.dispose();
  addend.dispose();
  return out;
}

/** With more ranges, a gradient is filled with zeros, because each range would be searched and filled by itself. */
const MAX_UNWRITTEN_RANGES = 16;

/** Nodes that have received a gradient but not run yet, by ascending sequence number. */
class GradientQueue {
  readonly #nodes: GradNode[] = [];
  readonly #gradients = new Map<GradNode, Tensor>();
  /** Of gradients to which only parts have been written. */
  readonly #unwrittenRanges = new Map<GradNode, UnwrittenRanges>();
  readonly #outer: GradientQueue | undefined;
  readonly #seedStorage: Storage | undefined;
  readonly #deferredGradients: { readonly leaf: Tensor; readonly gradient: Tensor }[] = [];

  /** `seedStorage`: memory of the gradient that the caller passed to `backward`, if any. */
  constructor(outer: GradientQueue | undefined, seedStorage: Storage | undefined) {
    this.#outer = outer;
    this.#seedStorage = seedStorage;
  }

  /** Returns whether x has the memory of the gradient passed to this backward, or to one that it is a part of. */
  sharesSeed(x: Tensor): boolean {
    return x.storage === this.#seedStorage || (this.#outer?.sharesSeed(x) ?? false);
  }

  /**
   * Defers adding to a leaf's `grad` that was itself passed to `backward`, as in `y.backward(x.grad)`, until no gradient
   * in flight shares its memory.
   */
  defer(leaf: Tensor, gradient: Tensor): void {
    if (this.#outer) this.#outer.defer(leaf, gradient);
    else
      this.#deferredGradients.push({ leaf, gradient: this.sharesSeed(gradient) ? replaceByCopy(gradient) : gradient });
  }

  addDeferredGradients(): void {
    for (const { leaf, gradient } of this.#deferredGradients) accumulateGrad(leaf, gradient);
  }

  add(node: GradNode, gradient: Tensor): void {
    const accumulatedGradient = this.#complete(node);
    this.#gradients.set(node, accumulatedGradient ? addGradients(accumulatedGradient, gradient) : gradient);
    if (!accumulatedGradient) this.#insert(node);
  }

  /**
   * Returns the gradient of a node to which a part of it is to be written, and whether that part is added to earlier
   * ones. Returns null if the gradient cannot be written in place, or would have to be created for a part with gaps.
   */
  prepareForPart(
    node: GradNode,
    part: GradientPart,
    { device }: Tensor,
  ): { readonly gradient: Tensor; readonly isAdded: boolean } | null {
    const accumulatedGradient = this.#gradients.get(node);
    if (accumulatedGradient) {
      if (!isSoleOwner(accumulatedGradient)) return null;
      const ranges = this.#unwrittenRanges.get(node);
      const isAdded = !ranges?.remove(part);
      if (isAdded || (ranges && ranges.count > MAX_UNWRITTEN_RANGES)) this.#complete(node);
      return { gradient: accumulatedGradient, isAdded };
    }
    if (part.range === null) return null;
    const { shape, dtype } = node.output;
    const ranges = new UnwrittenRanges(part.axis, shape[part.axis]!);
    ranges.remove(part);
    const gradient = device.empty(shape, dtype);
    this.#gradients.set(node, gradient);
    this.#unwrittenRanges.set(node, ranges);
    this.#insert(node);
    return { gradient, isAdded: false };
  }

  pop(): { node: GradNode; gradient: Tensor } | undefined {
    const node = this.#nodes.at(-1);
    if (!node) return undefined;
    const gradient = this.#complete(node)!;
    this.#nodes.pop();
    this.#gradients.delete(node);
    return { node, gradient };
  }

  dispose(): void {
    for (const gradient of this.#gradients.values()) gradient.dispose();
    for (const { leaf, gradient } of this.#deferredGradients) if (leaf.grad !== gradient) gradient.dispose();
    this.#gradients.clear();
  }

  /** Returns the gradient of a node after filling the positions that no part has been written to. */
  #complete(node: GradNode): Tensor | undefined {
    const gradient = this.#gradients.get(node);
    if (gradient) this.#unwrittenRanges.get(node)?.fillZeros(gradient);
    this.#unwrittenRanges.delete(node);
    return gradient;
  }

  #insert(node: GradNode): void {
    this.#nodes.splice(this.#findInsertIndex(node.sequenceNumber), 0, node);
  }

  #findInsertIndex(sequenceNumber: number): number {
    let [low, high] = [0, this.#nodes.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#nodes[middle]!.sequenceNumber < sequenceNumber) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
