import { checkDevice, checkTensor } from "../arguments.ts";
import type { Context } from "../context.ts";
import { dataParallelRank } from "../data-parallel.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type ResolvedOptionsOf } from "../options.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import type { AttentionModifiers } from "./tile.ts";

// Features of an attention call beyond plain attention: the options that users pass, and the modifiers that backends
// and kernels receive.

export const attentionModifierOptions = defineOptions("attention modifiers", {
  /**
   * Replaces scores by softcap · tanh(score / softcap), after `scale`: the logit softcapping of Gemma 2. Requires a
   * device with the feature `softcap`. Default: none.
   */
  softcap: option.number({ above: 0, optional: true }),
  /**
   * ALiBi (Press et al. 2022): [H] float32, one slope per query head. Subtracts slope · |i − j| from a score, where i
   * and j are the global positions of query and key. No gradient. Requires a device with the feature `slopes`. Default:
   * none.
   */
  alibiSlopes: option.tensor({ optional: true }),
  /**
   * Probability of zeroing an attention weight after the softmax; the other weights are scaled by 1 / (1 − dropout).
   * Which weights are dropped is a function of the context's seed, the call number, and the global sample, head, query
   * and key. It is the same on every mesh if all data-parallel ranks have equally many samples. Requires a device with
   * the feature `dropout`. Default 0.
   */
  dropout: option.number({ min: 0, below: 1, default: 0 }),
});
type ModifierOptions = ResolvedOptionsOf<typeof attentionModifierOptions>;

/**
 * Combines the modifiers of a call with those of its mask. Returns undefined if there are none, so that every device
 * accepts the call.
 */
export function resolveModifiers(
  ctx: Context,
  { softcap, alibiSlopes, dropout }: ModifierOptions,
  { q, maskModifiers }: { readonly q: Tensor; readonly maskModifiers: AttentionModifiers | undefined },
): AttentionModifiers | undefined {
  if (softcap === undefined && alibiSlopes === undefined && dropout === 0) return maskModifiers;
  return {
    ...maskModifiers,
    ...(softcap !== undefined && { softcap }),
    ...(alibiSlopes && { slopes: alibiSlopes }),
    ...(dropout > 0 && {
      dropout: {
        probability: dropout,
        seed: ctx.seed,
        stream: ctx.nextRandomStream(),
        batchOffset: dataParallelRank(ctx.mesh) * q.shape[0]!,
      },
    }),
  };
}

/**
 * Throws unless slopes are a float32 [H] on the device of q. H is `heads`, or at least `heads` if the call has only
 * some of the heads.
 */
export function checkSlopes(
  where: string,
  slopes: Tensor,
  { q, heads, hasAllHeads }: { readonly q: Tensor; readonly heads: number; readonly hasAllHeads: boolean },
): void {
  checkTensor(where, slopes);
  const hasSlopePerHead = hasAllHeads ? slopes.shape[0] === heads : slopes.shape[0]! >= heads;
  if (slopes.rank !== 1 || !hasSlopePerHead) {
    throw new ShapeError({
      where,
      expected: `shape [${heads}]${hasAllHeads ? "" : " or longer"}, one slope per query head`,
      received: formatShape(slopes.shape),
    });
  }
  checkDevice(where, q, slopes);
  if (slopes.dtype === "float32") return;
  throw new DTypeError({ where, expected: "float32", received: slopes.dtype, remedy: 'convert with to("float32")' });
}
