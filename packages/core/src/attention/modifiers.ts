import { checkDevice, checkTensor } from "../arguments.ts";
import type { Context } from "../context.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import * as option from "../option.ts";
import { defineOptions, type ResolvedOptionsOf } from "../options.ts";
import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";
import type { AttentionModifiers } from "./tile.ts";

// What an attention call computes beyond plain attention, as users pass it, and as backends and kernels take it.

export const attentionModifierOptions = defineOptions("attention modifiers", {
  /** Scores become softcap · tanh(score / softcap), after `scale`: the logit softcapping of Gemma 2. Takes a device with the feature `softcap`. Default: none. */
  softcap: option.number({ above: 0, optional: true }),
  /**
   * ALiBi (Press et al. 2022): [H] float32, one slope for each query head; a score loses slope · |i − j|, the distance of query and key in
   * global positions. No gradient. Takes a device with the feature `slopes`. Default: none.
   */
  alibiSlopes: option.tensor({ optional: true }),
  /**
   * Probability of a weight to become 0, after the softmax; those kept count 1 / (1 − dropout). What is dropped follows from the context's seed, the number of
   * the call and the global sample, head, query and key: it is the same on every mesh whose ranks along dp have equally many samples. Takes a device with the feature `dropout`. Default 0.
   */
  dropout: option.number({ min: 0, below: 1, default: 0 }),
});
type ModifierOptions = ResolvedOptionsOf<typeof attentionModifierOptions>;

/** The modifiers of a call with those of its mask; undefined where there are none, so that plain calls stay plain. */
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
        batchOffset: (ctx.mesh.coordinate.dp ?? 0) * q.shape[0]!,
      },
    }),
  };
}

/** Throws unless slopes are a float32 [H], of the device of q: of `heads` heads, or of more where a call has some of the heads. */
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
