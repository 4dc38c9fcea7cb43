import * as mosaic from "@mosaic/attention";

/** q, k, v and dOut, [batch, heads, n, d]. */
export type Operands = readonly [mosaic.Tensor, mosaic.Tensor, mosaic.Tensor, mosaic.Tensor];

export const dtypes = { bf16: "bfloat16", fp16: "float16" } as const;

/** Standard normal numbers; q, k and v require gradients if the problem is the backward. */
export function drawOperands(ctx: mosaic.Context, problem: Problem): Operands {
  const { batch, numHeads, n, d, dtype } = problem;
  const draw = (): mosaic.Tensor => mosaic.randn(ctx, [batch, numHeads, n, d], { dtype: dtypes[dtype] });
  return setRequiresGrad([draw(), draw(), draw(), draw()], problem);
}

export function setRequiresGrad(operands: Operands, { direction }: Pick<Problem, "direction">): Operands {
  for (const x of operands.slice(0, 3)) x.requiresGrad = direction === "backward";
  return operands;
}

/** Through the public API. */
export function attend(ctx: mosaic.Context, [q, k, v]: Operands, { mask, n }: Problem): mosaic.Tensor {
  const layout = mosaic.layoutOf({ mesh: ctx.mesh.shape, axes: [], length: n });
  return mosaic.attention(ctx, q, k, v, {
    mask: mask === "causal" ? mosaic.masks.causal() : mosaic.masks.full(),
    queries: layout,
    keys: layout,
  });
}

/** Takes what the backward left, so that the next one adds to nothing. */
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

/** What the sizes of all problems follow from: as in the FlashAttention papers, tokens and width stay and n varies. */
export interface Sizes {
  /** Batch × n. */
  readonly tokens: number;
  /** Heads × d. */
  readonly hidden: number;
}

/** Attention that both sides time: q, k, v and dOut are [batch, heads, n, d], all of one dtype. */
export interface Problem {
  readonly direction: "forward" | "backward";
  readonly dtype: "bf16" | "fp16";
  readonly mask: "full" | "causal";
  readonly d: number;
  readonly n: number;
  readonly numHeads: number;
  readonly batch: number;
}

/** What distinguishes one problem from another at the same sizes. */
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

/** Two products of 2n²d a head forward, five backward; a causal mask halves them. What is computed again is not counted. */
export function countFlops({ direction, mask, d, n, numHeads, batch }: Problem): number {
  return (direction === "forward" ? 4 : 10) * batch * numHeads * n * n * d * visibleShare(mask);
}

/** Each input read once, each output written once: q, k, v → out and lse; q, k, v, out, dOut, lse → dq, dk, dv. */
export function countBytes({ direction, d, n, numHeads, batch }: Problem): number {
  const rows = batch * numHeads * n;
  return rows * d * 2 * (direction === "forward" ? 4 : 8) + rows * 4;
}

/** One a pair that is seen; backward computes them again. */
export function countExponentials({ mask, n, numHeads, batch }: Problem): number {
  return batch * numHeads * n * n * visibleShare(mask);
}
