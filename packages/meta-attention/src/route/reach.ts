import { type Context, fromArray, type Tensor } from "@mosaic/core";

/** Which chunks each chunk may be routed to: never to itself. */
export interface Reach {
  /** How many chunks there are. */
  readonly chunks: number;
  /** Whether chunks have a before and an after: each is routed by what was before it, and never ahead. */
  readonly causal: boolean;
  /** Whether chunk i may look at chunk j. */
  may(i: number, j: number): boolean;
  /** How many chunks chunk i may look at. */
  count(i: number): number;
}

/** Every chunk may look at every other one, or at every one before it, if it sees any of its keys. */
export function reachAmong(
  chunks: number,
  { causal, sees = () => true }: { causal: boolean; sees?: (i: number, j: number) => boolean },
): Reach {
  const may = Uint8Array.from({ length: chunks * chunks }, (_, at) => {
    const [i, j] = [Math.floor(at / chunks), at % chunks];
    return (causal ? j < i : j !== i) && sees(i, j) ? 1 : 0;
  });
  const counts = Array.from({ length: chunks }, (_, i) =>
    may.subarray(i * chunks, (i + 1) * chunks).reduce((sum, yes) => sum + yes, 0),
  );
  return {
    chunks,
    causal,
    may: (i, j) => may[i * chunks + j] === 1,
    count: (i) => counts[i]!,
  };
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
