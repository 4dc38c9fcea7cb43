import { AutogradError } from "../errors.ts";
import { formatShape, sameShape, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { runUntracked } from "../tracking.ts";
import { checkVersions, recordVersions, type SavedVersions } from "./saved-tensors.ts";

/** Result of an attention call: `output` [B,H,Sq,Dv] in q's dtype and `lse` [B,H,Sq] float32. */
export interface AttentionResult {
  readonly output: Tensor;
  readonly lse: Tensor;
}

interface SavedResult extends AttentionResult {
  readonly versions: SavedVersions;
}

/**
 * The results of the attention calls in a checkpointed body, in call order. Attention is the one operation whose result
 * is small compared with the computation and communication that produce it, and (out, lse) is all that its backward
 * needs of the forward (DistFlashAttention, Li et al. 2023).
 */
export class SavedAttention implements Disposable {
  readonly #results: SavedResult[] = [];
  /** The enclosing checkpoint's results, which also record what is computed here. */
  readonly #outerAttention: SavedAttention | undefined = activeAttention;
  /** Index of the result that the next call returns; undefined while the body runs for the first time. */
  #nextResultIndex: number | undefined;

  /**
   * Whether an enclosing checkpoint keeps attention results. A nested checkpoint must then keep them as well, otherwise
   * its recomputation would compute them again.
   */
  static get isActive(): boolean {
    return activeAttention !== undefined;
  }

  /**
   * Runs `body` (synchronous). The first run records the results of its attention calls; later runs return the recorded
   * results.
   */
  run<T>(body: () => T): T {
    try {
      return withActiveAttention(this, body);
    } finally {
      this.#nextResultIndex = 0;
    }
  }

  recordOrReplay(shape: Shape, compute: () => AttentionResult): AttentionResult {
    if (this.#nextResultIndex !== undefined) return this.#takeResult(shape);
    const result = this.#outerAttention ? this.#outerAttention.recordOrReplay(shape, compute) : compute();
    const savedResult = runUntracked(() => ({ output: result.output.detach(), lse: result.lse.detach() }));
    this.#results.push({ ...savedResult, versions: recordVersions(savedResult) });
    return result;
  }

  #takeResult(shape: Shape): AttentionResult {
    const savedResult = this.#results[this.#nextResultIndex!++];
    if (!savedResult || !sameShape(savedResult.output.shape, shape)) {
      throw new AutogradError({
        where: "checkpoint",
        expected: savedResult
          ? `attention call ${this.#nextResultIndex} to return shape ${formatShape(savedResult.output.shape)}, as in the original forward`
          : `at most ${this.#results.length} attention calls, as in the original forward`,
        received: `an attention call that returns shape ${formatShape(shape)}`,
        remedy: "pass a body that makes the same attention calls when it is recomputed, or omit keepAttention",
      });
    }
    const { output, lse, versions } = savedResult;
    checkVersions("checkpoint", { output, lse }, versions);
    return { output: output.detach(), lse: lse.detach() };
  }

  [Symbol.dispose](): void {
    for (const { output, lse } of this.#results) for (const each of [output, lse]) each.dispose();
    this.#results.length = 0;
  }
}

let activeAttention: SavedAttention | undefined;

function withActiveAttention<T>(attention: SavedAttention, body: () => T): T {
  const previousAttention = activeAttention;
  activeAttention = attention;
  try {
    return body();
  } finally {
    activeAttention = previousAttention;
  }
}

/**
 * Returns the result of an attention call, whose output has this shape: the recorded one if a checkpoint is recomputing
 * its body, otherwise the result of `compute`.
 */
export function getOrComputeAttention(shape: Shape, compute: () => AttentionResult): AttentionResult {
  return activeAttention ? activeAttention.recordOrReplay(shape, compute) : compute();
}
