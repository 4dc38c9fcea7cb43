import { type Context, fromArray, type Tensor } from "@mosaic/core";

// What is added to a score so that it does not count: finite, so that no infinity is ever multiplied by 0, and so far below
// any score that its exponential is exactly 0.
export const FORBIDDEN = -1e9;

/** Whether chunk i may be routed to chunk j: never to itself, nor forward in time if causal. */
export function isAllowed(i: number, j: number, causal: boolean): boolean {
  return causal ? j < i : j !== i;
}

/** Chunks that chunk i may be routed to. */
export function allowedCount(i: number, chunks: number, causal: boolean): number {
  return causal ? i : chunks - 1;
}

/** [N,N]: `yes` where the rule holds, `no` elsewhere. */
export function pairs(
  ctx: Context,
  chunks: number,
  { rule, yes, no }: { rule: (i: number, j: number) => boolean; yes: number; no: number },
): Tensor {
  const values = Float32Array.from({ length: chunks * chunks }, (_, at) =>
    rule(Math.floor(at / chunks), at % chunks) ? yes : no,
  );
  return fromArray(ctx, values, [chunks, chunks]);
}
