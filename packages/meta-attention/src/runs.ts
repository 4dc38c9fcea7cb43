import { concatenate, type Tensor } from "@mosaic/core";
import type { Chunks } from "./chunks.ts";

/** The stretches [from, to) of 0 … count − 1 in which a rule holds. */
export function runsWhere(count: number, holds: (at: number) => boolean): (readonly [from: number, to: number])[] {
  const runs: (readonly [number, number])[] = [];
  for (let from = 0; from < count; ) {
    let to = from;
    while (to < count && holds(to)) to++;
    if (to > from) runs.push([from, to]);
    from = to + 1;
  }
  return runs;
}

/** The rows of this rank's chunks, [B,N,N] → [B,c,N], with history. */
export function ownRowsOf(x: Tensor, { own, all }: Chunks): Tensor {
  const isOwn = new Set(own.map(({ index }) => index));
  const runs = runsWhere(all.length, (index) => isOwn.has(index));
  if (runs.length <= 1) return x.slice(1, ...(runs[0] ?? [0, 0]));
  const parts = runs.map(([from, to]) => x.slice(1, from, to));
  const rows = concatenate(parts, 1);
  for (const part of parts) part.dispose();
  return rows;
}
