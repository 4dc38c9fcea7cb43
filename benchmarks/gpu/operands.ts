import * as mosaic from "@mosaic/attention";
import type { Problem } from "./problem.ts";

/** q, k, v and dOut, [batch, heads, n, d]. */
export type Operands = readonly [mosaic.Tensor, mosaic.Tensor, mosaic.Tensor, mosaic.Tensor];

export const dtypes = { bf16: "bfloat16", fp16: "float16" } as const;

/** Standard normal numbers; q, k and v want gradients if the problem is the backward. */
export function drawOperands(ctx: mosaic.Context, problem: Problem): Operands {
  const { batch, numHeads, n, d, dtype } = problem;
  const draw = (): mosaic.Tensor => mosaic.randn(ctx, [batch, numHeads, n, d], { dtype: dtypes[dtype] });
  return wanting([draw(), draw(), draw(), draw()], problem);
}

export function wanting(operands: Operands, { direction }: Pick<Problem, "direction">): Operands {
  for (const x of operands.slice(0, 3)) x.requiresGrad = direction === "backward";
  return operands;
}

/** Through the API that everybody uses. */
export function attend(ctx: mosaic.Context, [q, k, v]: Operands, { mask, n }: Problem): mosaic.Tensor {
  const rows = mosaic.layoutOf({ mesh: ctx.mesh.shape, axes: [], length: n });
  return mosaic.attention(ctx, q, k, v, {
    mask: mask === "causal" ? mosaic.masks.causal() : mosaic.masks.full(),
    queries: rows,
    keys: rows,
  });
}

/** Takes what the backward left, so that the next one adds to nothing. */
export function takeGradients([q, k, v]: Operands): [mosaic.Tensor, mosaic.Tensor, mosaic.Tensor] {
  const gradients = [q, k, v].map((x) => {
    const gradient = x.grad!;
    x.grad = null;
    return gradient;
  });
  return gradients as [mosaic.Tensor, mosaic.Tensor, mosaic.Tensor];
}

export function disposeAll(tensors: readonly mosaic.Tensor[]): void {
  for (const x of tensors) x.dispose();
}
