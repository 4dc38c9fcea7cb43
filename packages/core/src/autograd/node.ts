import { AutogradError, checkFunction } from "../errors.ts";
import type { Tensor } from "../tensor.ts";

/** Destination of a gradient: the operation that created the input, or the `grad` of a leaf. */
export type Edge = { readonly node: GradNode } | { readonly leaf: Tensor } | null;

/** The backward of a recorded operation, with its saved tensors. */
export interface BackwardDefinition {
  readonly name: string;
  /**
   * Returns one gradient per input, of its shape and dtype, or null where none is needed. The caller takes ownership of
   * them and retains ownership of `dOutput`, which may be returned unchanged.
   */
  backward(dOutput: Tensor, needsInputGrad: readonly boolean[]): readonly (Tensor | null)[];
  /**
   * For an operation with one input whose output is a part of that input. Without it, each part would need a gradient
   * of the input's full size, zero elsewhere.
   */
  readonly part?: GradientPart;
  /** Disposes the saved tensors. */
  free(): void;
}

/** A part of a gradient that one operation contributes. */
export interface GradientPart {
  /** The axis of which the part has some positions, and all positions of the other axes. */
  readonly axis: number;
  /** The positions, start to end - 1 without gaps; null if the part has gaps. */
  readonly range: { readonly start: number; readonly end: number } | null;
  /** Writes `dOutput` to the part of a gradient of the input; adds it if `isAdded`. */
  write(dOutput: Tensor, gradient: Tensor, isAdded: boolean): void;
}

/** Shape and dtype of a tensor. */
export type TensorMetadata = Pick<Tensor, "shape" | "dtype">;

let nextSequenceNumber = 0;

/**
 * One operation on the tape. Its output tensor and the operations that use this tensor hold references to it. Its saved
 * tensors are freed when the last reference is released or when its backward has run.
 */
export class GradNode {
  /** Order of creation. Descending order is a topological order for the backward, and the same on every rank. */
  readonly sequenceNumber: number = nextSequenceNumber++;
  readonly name: string;
  readonly edges: readonly Edge[];
  /** Shape and dtype of the operation's output, and therefore of its gradient. */
  readonly output: TensorMetadata;
  #definition: BackwardDefinition | undefined;
  #references = 0;

  constructor(definition: BackwardDefinition, edges: readonly Edge[], output: TensorMetadata) {
    this.name = definition.name;
    this.#definition = definition;
    this.edges = edges;
    this.output = output;
    for (const edge of edges) if (edge !== null && "node" in edge) edge.node.retain();
  }

  /** The backward; undefined once it has run or was freed. */
  get definition(): BackwardDefinition | undefined {
    return this.#definition;
  }

  /** Disposes the operation's saved tensors. */
  free(): void {
    this.#definition?.free();
    this.#definition = undefined;
  }

  retain(): void {
    this.#references++;
  }

  /** Releases a reference. Frees the operation and, iteratively, all operations that are no longer referenced. */
  release(): void {
    const nodesToRelease: GradNode[] = [this];
    for (let node = nodesToRelease.pop(); node !== undefined; node = nodesToRelease.pop()) {
      if (--node.#references > 0) continue;
      node.free();
      for (const edge of node.edges) if (edge !== null && "node" in edge) nodesToRelease.push(edge.node);
    }
  }
}

let isRecordingEnabled = true;

/**
 * Returns whether operations are recorded: false inside `noGrad`, a backward and the forward of an operation, except in
 * `enableGrad` there.
 *
 * @example
 * ```ts
 * import { isGradEnabled, noGrad } from "@mosaic/core";
 * [isGradEnabled(), noGrad(isGradEnabled)]; // => [true, false]
 * ```
 */
export function isGradEnabled(): boolean {
  return isRecordingEnabled;
}

/** Returns whether operations on x are recorded on the tape. The result of a recorded operation requires grad, too. */
export function isRecorded(x: Tensor): boolean {
  return isRecordingEnabled && x.requiresGrad;
}

/** Switches recording on or off; returns the previous mode. */
export function setGradMode(isEnabled: boolean): boolean {
  const previousMode = isRecordingEnabled;
  isRecordingEnabled = isEnabled;
  return previousMode;
}

function withGradMode<T>(where: string, isEnabled: boolean, body: () => T): T {
  checkSynchronous(where, body);
  const previousMode = isRecordingEnabled;
  isRecordingEnabled = isEnabled;
  try {
    return body();
  } finally {
    isRecordingEnabled = previousMode;
  }
}

/** Rejects async functions, because the code after their first `await` would run in the caller's mode. */
function checkSynchronous(where: string, body: () => unknown): void {
  checkFunction(where, body);
  if (Object.prototype.toString.call(body) !== "[object AsyncFunction]") return;
  throw new AutogradError({
    where,
    expected: "a synchronous function",
    received: "an async function",
    remedy: `await outside: call ${where} between the awaits`,
  });
}

/**
 * Runs `body` (synchronous) without recording. Its results do not require grad and keep no other tensors alive.
 *
 * @throws AutogradError for an async function. A synchronous body may return a promise of enqueued work, such as that
 * of a read.
 * @example
 * ```ts
 * import { noGrad, ones, square } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = ones(device, [2]);
 * x.requiresGrad = true;
 * using y = noGrad(() => square(x));
 * y.requiresGrad; // => false
 * ```
 */
export function noGrad<T>(body: () => T): T {
  return withGradMode("noGrad", false, body);
}

/**
 * Runs `body` (synchronous) with recording on, even inside `noGrad` or a backward.
 *
 * @example
 * ```ts
 * import { enableGrad, noGrad, ones, square } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = cpu();
 * using x = ones(device, [2]);
 * x.requiresGrad = true;
 * using y = noGrad(() => enableGrad(() => square(x)));
 * y.requiresGrad; // => true
 * ```
 * @throws AutogradError for an async function, as `noGrad`.
 */
export function enableGrad<T>(body: () => T): T {
  return withGradMode("enableGrad", true, body);
}
