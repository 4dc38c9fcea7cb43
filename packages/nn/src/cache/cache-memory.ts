import type { Context, ProcessGroup, Tensor } from "@mosaic/core";
import type { CacheBlocks } from "./block-table.ts";

/** What the parts of a cache know of it. */
export interface CacheMemory extends CacheBlocks {
  readonly ctx: Context;
  readonly group: ProcessGroup | undefined;
  /** This rank's number along the axis. */
  readonly rank: number;
  readonly axis: string | undefined;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly valueHeadDim: number;
  /** [numLayers,Hkv,rows,D] and [numLayers,Hkv,rows,Dv]: this rank's blocks, one after another. */
  readonly k: Tensor;
  readonly v: Tensor;
}
