import type { Context, ProcessGroup, Tile } from "@mosaic/core";
import type { Chunk, Chunks } from "../chunks.ts";

/** How the attention over chosen chunks is combined with that over the own one. */
export type Combine = "soft" | "exact";

/** What stays the same throughout one forward and its backward. */
export interface AttendPlan {
  readonly ctx: Context;
  readonly group: ProcessGroup;
  readonly chunks: Chunks;
  readonly combine: Combine;
  /** Whether the attention over the own chunk alone is wanted, too. */
  readonly gate: boolean;
  readonly scale: number;
  readonly numHeads: number;
  /** Key heads; a divisor of heads. */
  readonly numKvHeads: number;
  readonly headDim: number;
  /** Who calls, as messages and traces shall state. */
  readonly label: string;
}

/** Queries of one chunk against keys of another, or the same. */
export function tileOf({ chunks: { mask }, scale }: AttendPlan, queries: Chunk, keys: Chunk): Tile {
  return { q: queries.spans, k: keys.spans, mask, scale };
}
