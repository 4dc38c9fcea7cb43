import { AutogradError, checkFunction } from "../errors.ts";
import type { Tensor } from "../tensor.ts";

/** Destination of a gradient: the operation that created the input, or the `grad` of a leaf. */
export type Edge = { readonly node: GradNode } | { readonly leaf: Tensor } | null;

/** What an operation saved for its backward. */
export interface BackwardDefinition {
  readonly name: string;
  /**
   * One gradient per input, of its shape and dtype, or null where none is needed. The caller takes ownership of them and
   * keeps that of `dOutput`, which may be returned unchanged.
   */
  backward(dOutput: Tensor, needsInputGrad: readonly boolean[]): readonly (Tensor | null)[];
  /**
   * Of an operation of one input that shows a part of it: adds its gradient to `accumulator`, what other operations have contributed so
   * far. Without it, the parts of a tensor would each be a gradient of its whole size, zero elsewhere.
   */
  addGradient?(dOutput: Tensor, accumulator: Tensor): void;
  /** Disposes the saved tensors. */
  free(): void;
}

/** Shape and dtype of a tensor. */
export type TensorMetadata = Pick<Tensor, "shape" | "dtype">;

let nextSequenceNumber = 0;

/**
 * One operation on the tape. It is held by the tensor it made and by the operations that used that tensor; when the
 * last of them is released, or once its backward has run, what it saved is freed.
 */
export class GradNode {
  /** Order of creation: running backward in falling order is a topological order, and the same on every rank. */
  readonly sequenceNumber: number = nextSequenceNumber++;
  readonly name: string;
  readonly edges: readonly Edge[];
  /** Shape and dtype of what the operation made, and so of its gradient. */
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

  /** Undefined once it has run: a second backward through the same operation finds nothing. */
  get definition(): BackwardDefinition | undefined {
    return this.#definition;
  }

  /** Disposes what the operation saved. */
  free(): void {
    this.#definition?.free();
    this.#definition = undefined;
  }

  retain(): void {
    this.#references++;
  }

  /** Drops a reference; a chain of operations without references is freed link by link. */
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

/** Whether operations are being recorded. */
export function isGradEnabled(): boolean {
  return isRecordingEnabled;
}

/** Whether an operation on x is put on the tape. */
export function isRecorded(x: Tensor): boolean {
  return isRecordingEnabled && (x.requiresGrad || x.node !== undefined);
}

/** Switches recording on or off; returns what it was. */
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

/** What follows the first `await` of an asynchronous function would run in the mode around it. */
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
 * Runs `body` (synchronous) without recording: its results need no gradient and keep nothing alive.
 *
 * @throws AutogradError for an async function. A promise of what was enqueued meanwhile may be returned, such as that of a read.
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

/** Runs `body` (synchronous) with recording on, even inside `noGrad` or a backward. */
export function enableGrad<T>(body: () => T): T {
  return withGradMode("enableGrad", true, body);
}
