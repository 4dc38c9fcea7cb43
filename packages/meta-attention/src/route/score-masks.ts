import { type Context, type Device, fromArray, type Tensor } from "@mosaic/core";
import type { Chunks } from "../chunks.ts";
import type { Chosen } from "./choose.ts";

// What is added to the scores [B,c,N] of this rank's chunks: 0 for those that count, −Infinity for the others.

/** [1,c,N]: those of chunks that they may look at. */
export function reachMask(on: Context | Device, { own, all, reach }: Chunks): Tensor {
  const values = own.flatMap(({ index }) => all.map((chunk) => (reach.may(index, chunk.index) ? 0 : -Infinity)));
  return fromArray(on, values, [1, own.length, all.length]);
}

/** [B,c,N]: those of chunks that they chose. */
export function chosenMask(on: Context | Device, chosen: Chosen, { own, all }: Chunks): Tensor {
  const values = chosen.flatMap((ofBatch) =>
    own.flatMap(({ index }) => all.map((chunk) => (ofBatch[index]!.includes(chunk.index) ? 0 : -Infinity))),
  );
  return fromArray(on, values, [chosen.length, own.length, all.length]);
}
