import { type Context, fromArray, type Tensor } from "@mosaic/core";
import type { Chunks } from "../chunks.ts";
import { FORBIDDEN } from "./reach.ts";
import type { Chosen } from "./choose.ts";

/** [B,c,N]: 0 where one of this rank's chunks chose another, −1e9 elsewhere: added to scores, only chosen ones count. */
export function chosenOnly(ctx: Context, chosen: Chosen, { own, all }: Chunks): Tensor {
  const values = chosen.flatMap((ofBatch) =>
    own.flatMap(({ index }) => all.map((chunk) => (ofBatch[index]!.includes(chunk.index) ? 0 : FORBIDDEN))),
  );
  return fromArray(ctx, values, [chosen.length, own.length, all.length]);
}
