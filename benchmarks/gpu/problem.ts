import * as mosaic from "@mosaic/attention";

/** q, k, v and dOut, each [batch, heads, n, d]. */
export type Operands = readonly [mosaic.Tensor, mosaic.Tensor, mosaic.Tensor, mosaic.Tensor];

export const dtypes = { bf16: "bfloat16", fp16: "float16" } as const;

/** Draws standard normal operands. q, k and v require gradients if the problem is the backward. */
export function drawOperands(ctx: mosaic.Context, problem: Problem): Operands {
  const { batch, numHeads, n, d, dtype } = problem;
  const draw = (): mosaic.Tensor => mosaic.randn(ctx, [batch, numHeads, n, d], { dtype: dtypes[dtype] });
  return setRequiresGrad([draw(), draw(), draw(), draw()], problem);
}

export function setRequiresGrad(operands: Operands, { direction }: Pick<Problem, "direction">): Operands {
  for (const x of operands.slice(0, 3)) x.requiresGrad = direction === "backward";
  return operands;
}

/** Computes attention through the public API. */
export function attend(ctx: mosaic.Context, [q, k, v]: Operands, { mask, n }: Problem): mosaic.Tensor {
  const layout = mosaic.layoutOf({ mesh: ctx.mesh.shape, axes: [], length: n });
  return mosaic.attention(ctx, q, k, v, {
    mask: mask === "causal" ? mosaic.masks.causal() : mosaic.masks.full(),
    queries: layout,
    keys: layout,
  });
}

/** Removes and returns the gradients, so that the next backward does not accumulate into them. */
export function detachGradients([q, k, v]: Operands): [mosaic.Tensor, mosaic.Tensor, mosaic.Tensor] {
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

/**
 * Sizes that all problems have in common. As in the FlashAttention papers, the tokens and the width are constant and n
 * varies.
 */
export interface Sizes {
  /** Batch × n. */
  readonly tokens: number;
  /** Heads × d. */
  readonly hidden: number;
}

/** One problem that Mosaic and PyTorch compute. q, k, v and dOut are [batch, heads, n, d], all of one dtype. */
export interface Problem {
  readonly direction: "forward" | "backward";
  readonly dtype: "bf16" | "fp16";
  readonly mask: "full" | "causal";
  readonly d: number;
  readonly n: number;
  readonly numHeads: number;
  readonly batch: number;
}

/** The fields in which problems of the same sizes differ. */
export type ProblemVariant = Pick<Problem, "direction" | "dtype" | "mask" | "d" | "n">;

export function createProblem(variant: ProblemVariant, { tokens, hidden }: Sizes): Problem {
  const batch = tokens / variant.n;
  const numHeads = hidden / variant.d;
  if (!Number.isInteger(batch) || !Number.isInteger(numHeads)) {
    throw new Error(
      `createProblem: expected whole sequences of ${variant.n} tokens with heads of size ${variant.d}, received ${tokens} tokens with hidden size ${hidden}`,
    );
  }
  return { ...variant, numHeads, batch };
}

export function formatName({ direction, dtype, mask, d, n }: ProblemVariant): string {
  return `${direction}.${dtype}.${mask}.d${d}.n${n}`;
}

const visibleShare = (mask: Problem["mask"]): number => (mask === "causal" ? 0.5 : 1);

/**
 * Counts operations: two products of 2n²d per head in the forward, five in the backward. A causal mask halves them.
 * Recomputation is not counted.
 */
export function countFlops({ direction, mask, d, n, numHeads, batch }: Problem): number {
  return (direction === "forward" ? 4 : 10) * batch * numHeads * n * n * d * visibleShare(mask);
}

/**
 * Counts bytes, with each input read once and each output written once: q, k, v → out and lse; q, k, v, out, dOut, lse
 * → dq, dk, dv.
 */
export function countBytes({ direction, d, n, numHeads, batch }: Problem): number {
  const rows = batch * numHeads * n;
  return rows * d * 2 * (direction === "forward" ? 4 : 8) + rows * 4;
}

/** Counts exponentials, one per visible pair. The backward recomputes them. */
export function countExponentials({ mask, n, numHeads, batch }: Problem): number {
  return batch * numHeads * n * n * visibleShare(mask);
}
