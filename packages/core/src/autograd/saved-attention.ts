import { AutogradError } from "../errors.ts";
import { formatShape, sameShape, type Shape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import { runUntracked } from "../tracking.ts";
import { checkVersions, recordVersions, type SavedVersions } from "./saved-tensors.ts";

/** What a call of attention computes: [B,H,Sq,Dv] in q's dtype and [B,H,Sq] float32. */
export interface AttentionResult {
  readonly output: Tensor;
  readonly lse: Tensor;
}

interface SavedResult extends AttentionResult {
  readonly versions: SavedVersions;
}

/**
 * The results of the calls of attention in a body that a backward runs again, in their order: attention is the one operation whose
 * result is small beside the work and the messages that make it, and from (out, lse) its backward needs nothing else
 * (DistFlashAttention, Li et al. 2023).
 */
export class SavedAttention implements Disposable {
  readonly #results: SavedResult[] = [];
  /** Of a checkpoint around this one, which keeps what is computed here, too. */
  readonly #outerAttention: SavedAttention | undefined = activeAttention;
  /** The result that the next call gets; undefined while the body runs for the first time. */
  #nextResultIndex: number | undefined;

  /** Whether a checkpoint that runs its body now keeps results: one within keeps them, too, or its recomputation would compute them. */
  static get isActive(): boolean {
    return activeAttention !== undefined;
  }

  /** Runs `body` (synchronous), whose calls of attention are kept the first time and get what was kept from then on. */
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

/** The result of a call of attention, of that shape: what a checkpoint that runs its body again has kept, or what `compute` gives. */
export function getOrComputeAttention(shape: Shape, compute: () => AttentionResult): AttentionResult {
  return activeAttention ? activeAttention.recordOrReplay(shape, compute) : compute();
}
